"""The result of reading a model: values, initial states, and a report on each tensor."""

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
"""The kind of a tensor of a model: learned, fixed, or a running statistic."""


@dataclass(frozen=True)
class Reported:
    """The report on one tensor of a model.

    `kind` is what it became, such as a parameter, and `reason` says why. For a state, `state` is
    its name in graphc.
    `is_trained` is True if optimizers update it.
    """

    name: str
    kind: Kind
    reason: str
    shape: tuple[int, ...]
    dtype: str
    state: str | None
    is_trained: bool


class InitialStates(Mapping[str, Array]):
    """A mapping from names of states to their initial values, which are read on access."""

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

    `inputs` and `outputs` are values by their names in the model. `states` has the initial values
    of states by their names in graphc, and `report` one entry for each tensor of the model. `names`
    maps names of inputs and tensors in the model to names in graphc.
    """

    inputs: Mapping[str, Input]
    outputs: Mapping[str, Value]
    states: Mapping[str, Array]
    report: tuple[Reported, ...]
    names: Mapping[str, str]

    def initialize(self, program: Program) -> None:
        """Write the model's weights into a program of this network, one tensor at a time.

        Other states of the program, such as moments, keep their content. Raises `OptionError` for a
        program with none of these states, and for a network that was read without its weights.
        Raises `OnnxError` if external data of a file cannot be read.
        """
        if not isinstance(program, Program):
            raise OptionError(f"initialize needs a compiled program, got {quoted(program)}")
        if not self.states and any(entry.state is not None for entry in self.report):
            raise OptionError(
                "initialize: the network was loaded without its weights; load it with weights=True"
            )
        held = set(program.states)
        named = [name for name in self.states if name in held]
        if not named and self._reads_states():
            raise OptionError(
                "the program has no state of this network; compile the outputs of the network"
            )
        for name in named:
            program.states[name] = self.states[name]

    def _reads_states(self) -> bool:
        """Return True if an output is computed from a state of the model."""
        return any(state.name in self.states for state in trace(self.outputs).states)

    @property
    def output(self) -> Value:
        """The output of a network with a single output; raises `OptionError` for other networks."""
        if len(self.outputs) != 1:
            raise OptionError(
                f"the network has several outputs, {', '.join(self.outputs)}; choose one"
            )
        return next(iter(self.outputs.values()))
