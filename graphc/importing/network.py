"""What reading a model gives: values, how states begin, and what became of each weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from graphc.errors import OptionError, quoted
from graphc.importing.weights import Array, Weight
from graphc.ir.builder import trace
from graphc.ir.graph import Input, Value
from graphc.runtime.program import Program

Kind = Literal["parameter", "constant", "statistic"]
"""What a tensor of the model is in a network: learned, fixed, or a running statistic."""


@dataclass(frozen=True)
class Reported:
    """What became of a tensor of the model, and why; `state` is its name in graphc, if it has one.

    `is_trained` says whether an optimizer moves it.
    """

    name: str
    kind: Kind
    reason: str
    shape: tuple[int, ...]
    dtype: str
    state: str | None
    is_trained: bool


class InitialStates(Mapping[str, Array]):
    """The numbers that states begin with, by the states' names; read when they are asked for."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Array:
        return self._weights[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self._weights

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@dataclass(frozen=True)
class Network:
    """A network that was read from a model of another framework.

    `inputs` and `outputs` are values by the names that the model gives them, `states` what states
    begin with by graphc's names, `report` one entry for each tensor of the model. `names` leads
    from the model's names of inputs and tensors to graphc's.
    """

    inputs: Mapping[str, Input]
    outputs: Mapping[str, Value]
    states: Mapping[str, Array]
    report: tuple[Reported, ...]
    names: Mapping[str, str]

    def initialize(self, program: Program) -> None:
        """Write the model's weights into a program of this network, one tensor at a time.

        States that the program has beside them, such as moments, keep what they hold. Raises
        `OptionError` for a program with none of these states and for a network that was read
        without its weights, and `OnnxError` where external data of a file cannot be read.
        """
        if not isinstance(program, Program):
            raise OptionError(f"initialize takes a compiled program, got {quoted(program)}")
        if not self.states and any(entry.state is not None for entry in self.report):
            raise OptionError(
                "initialize: the network was read without the numbers of its weights; load it with "
                "weights=True"
            )
        held = set(program.states)
        named = [name for name in self.states if name in held]
        if not named and self._reads_states():
            raise OptionError("the program has no state of this network; compile its outputs")
        for name in named:
            program.states[name] = self.states[name]

    def _reads_states(self) -> bool:
        """Whether an output is computed from a state of the model."""
        return any(state.name in self.states for state in trace(self.outputs).states)

    @property
    def output(self) -> Value:
        """The only output of a network that has one; raises `OptionError` for others."""
        if len(self.outputs) != 1:
            raise OptionError(f"the network has the outputs {', '.join(self.outputs)}; choose one")
        return next(iter(self.outputs.values()))
