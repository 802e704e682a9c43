"""Export of programs or outputs to ONNX files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.compiler.compilation import traced
from graphc.compiler.options import PlanOptions
from graphc.errors import OnnxError, OptionError, check_seed, or_all, quoted, truth
from graphc.files import check_writable, is_regular, write_atomically
from graphc.ir.contents import Contents
from graphc.ir.graph import Graph, State, Value
from graphc.ir.op import Array
from graphc.onnx.forward import forward_of
from graphc.onnx.recorded import record
from graphc.onnx.written import Written, written
from graphc.passes.modes import number_streams
from graphc.runtime.initial import fill_initial
from graphc.runtime.program import Program

MOST_INLINE_BYTES = 2**30
"""If all states together are larger, they are written to a separate file, since an ONNX file must
be smaller than 2 GiB."""

MOST_BYTES = 2**31 - 2**20
"""Maximum bytes of states inside the ONNX file. The rest of 2 GiB is reserved for the graph."""

ALIGNMENT = 4096
"""Alignment in bytes of states in a separate file, so that they can be memory-mapped."""

Outputs = Program | Value | Sequence[Value] | Mapping[str, Value]


def save(
    source: Outputs,
    path: str | os.PathLike[str],
    external_data: bool | Literal["auto"] = "auto",
    training: bool = False,
    seed: int | None = None,
    states: Mapping[str, Array] | None = None,
) -> None:
    """Write a program or outputs as ONNX: the implementation of `graphc.onnx.save`."""
    check_writable(path, OnnxError)
    training = truth("onnx.save: training", training)
    graph, content = _source(source, seed, states)
    made = written(graph, training)
    record(made.model, graph, training)
    target = Path(path)
    total = sum(state.type.bytes for state in made.states)
    if _is_external(external_data, total):
        _put_beside(made, content, target)
    else:
        _put_inside(made, content)
    encoded = made.model.SerializeToString(deterministic=True)
    write_atomically(target, encoded, OnnxError)
    _remove_old(target, made)


def _source(
    source: Outputs, seed: int | None, states: Mapping[str, Array] | None
) -> tuple[Graph, Callable[[State], Array]]:
    """Return the graph to write, and a function that returns the content of a state."""
    if isinstance(source, Program):
        if seed is not None or states is not None:
            raise OptionError("a program contains its states; omit seed and states")
        return forward_of(source.graph), _content(source.states, 0)
    if not isinstance(states, Mapping | None):
        raise OptionError(f"states must map names of states to arrays, got {quoted(states)}")
    options = PlanOptions(source) if isinstance(source, Value) else PlanOptions(outputs=source)
    graph = number_streams(forward_of(traced(options)))
    if states:
        _check_any_named(states, graph)
    return graph, _content(states or {}, check_seed(0 if seed is None else seed))


def _check_any_named(held: Mapping[str, Array], graph: Graph) -> None:
    """Raise `OptionError` if the graph has states and none of them is in `held`.

    `held` may also contain other states, such as optimizer moments and weights of other networks.
    """
    own = [state.name for state in graph.states if not isinstance(state.initial, Contents)]
    if own and not any(name in held for name in own):
        first = next(iter(held))
        raise OptionError(
            f"states: the outputs use none of the {len(held)} given states, such as "
            f"{quoted(first)}; {or_all(first, own)}"
        )


def _content(held: Mapping[str, Array], seed: int) -> Callable[[State], Array]:
    """Return a function from a state to its content.

    The content is that of a constant, the array in `held`, or the initial values for `seed`.
    """

    def content(state: State) -> Array:
        if isinstance(state.initial, Contents):
            return state.initial.array
        if state.name in held:
            return _checked(state, np.asarray(held[state.name]))
        array = np.empty(state.shape, state.type.dtype.numpy)
        fill_initial(state, seed, array)
        return array

    return content


def _checked(state: State, array: Array) -> Array:
    """Return the array of a state; raise `OptionError` if its shape or dtype is not the state's."""
    if array.shape != state.shape or array.dtype != state.type.dtype.numpy:
        raise OptionError(
            f"states: {state.name!r} must be {state.type}, got {array.dtype}{list(array.shape)}; "
            "pass the states of a program with these outputs"
        )
    return array


def _is_external(asked: bool | str, total: int) -> bool:
    if asked == "auto":
        return total > MOST_INLINE_BYTES
    is_asked = truth("onnx.save: external_data", asked, ', or "auto"')
    if not is_asked and total > MOST_BYTES:
        raise OptionError(
            f"an ONNX file must be smaller than 2 GiB, but the states need {format_bytes(total)}; "
            "omit external_data to write them to a separate file"
        )
    return is_asked


def _put_inside(made: Written, content: Callable[[State], Array]) -> None:
    for tensor, state in zip(made.model.graph.initializer, made.states, strict=False):
        tensor.raw_data = content(state).tobytes()


def _put_beside(made: Written, content: Callable[[State], Array], target: Path) -> None:
    """Write the states to a separate file and make the model refer to it.

    The file is named by a hash of its content, so an existing model keeps its own states until the
    new model has replaced it.
    """
    if not is_regular(target):
        raise OnnxError(
            f"{str(target)!r} is not a regular file, so the states cannot be written next to it; "
            "choose the path of a regular file"
        )
    digest = hashlib.blake2b(digest_size=8)
    for part in _parts(made, content):
        digest.update(part)
    name = f"{target.name}.{digest.hexdigest()}.data"
    offset = 0
    for tensor, state in zip(made.model.graph.initializer, made.states, strict=False):
        tensor.data_location = tensor.EXTERNAL
        for key, value in (("location", name), ("offset", offset), ("length", state.type.bytes)):
            tensor.external_data.add(key=key, value=str(value))
        offset += _aligned(state.type.bytes)
    write_atomically(target.with_name(name), _parts(made, content), OnnxError)


def _parts(made: Written, content: Callable[[State], Array]) -> Iterator[bytes]:
    """Yield the bytes of the states and their padding, one state at a time to limit memory."""
    for state in made.states:
        yield content(state).tobytes()
        yield bytes(_aligned(state.type.bytes) - state.type.bytes)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _remove_old(target: Path, made: Written) -> None:
    """Remove the state files of earlier models at the path `target`."""
    kept = {entry.value for t in made.model.graph.initializer for entry in t.external_data}
    name = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    for entry in target.parent.iterdir() if is_regular(target) else ():
        if name.fullmatch(entry.name) and entry.name not in kept:
            entry.unlink(missing_ok=True)
