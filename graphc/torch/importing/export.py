"""Export of a module as a functional graph of ATen operators by torch.export.

Only operators without a rule in graphc are decomposed, if torch knows a decomposition.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decompositions
from torch.export import ExportedProgram, _trace

from graphc.errors import OptionError, TorchError, quoted
from graphc.torch.importing.calls import RULES, operator_of
from graphc.torch.importing.custom_gradients import detached_regions, refused_in
from graphc.torch.versions import is_before

ROUNDS = 8
"""Maximum number of decomposition rounds; no known operator needs more."""


def exported(
    module: torch.nn.Module | ExportedProgram | str | os.PathLike[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    trains: bool = True,
) -> ExportedProgram:
    """Return the functional program of a module, an exported program or a file.

    If the program `trains`, a module whose gradients are not those of its forward pass is refused.
    """
    with _quiet(), _final_states_of_lstm():
        is_checked = trains and isinstance(module, torch.nn.Module)
        with refused_in(module) if is_checked else contextlib.nullcontext():
            program = _program(module, args, kwargs)
        with detached_regions(program), _told("torch.export failed to functionalize the module"):
            program = program.run_decompositions({})
        with _told("torch.export failed to functionalize the module"):
            for _ in range(ROUNDS):
                lacking = _compositions(program)
                if not lacking:
                    break
                program = program.run_decompositions(lacking)
    return program


def _program(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> ExportedProgram:
    if isinstance(module, torch.nn.Module):
        if isinstance(args, torch.Tensor) or not isinstance(args, Sequence):
            raise OptionError(
                f"args must be a tuple of the module's arguments, got {quoted(type(args))}"
            )
        _refuse_cumulative_norms(module)
        with _told("torch.export failed to export the module"):
            return torch.export.export(module, *_apart((tuple(args), dict(kwargs or {}))))
    if args or kwargs:
        raise OptionError("an exported module already has its arguments; omit args and kwargs")
    if isinstance(module, ExportedProgram):
        return module
    if not isinstance(module, str | os.PathLike):
        raise OptionError(
            "load needs a torch.nn.Module, an ExportedProgram, or the path of a .pt2, got "
            f"{quoted(type(module))}"
        )
    with _told(f"{os.fspath(module)!r} cannot be read"):
        return torch.export.load(module)


def _refuse_cumulative_norms(module: torch.nn.Module) -> None:
    """Raise `TorchError` for norms that weight a batch by the number of earlier steps."""
    for name, part in module.named_modules():
        if not isinstance(part, torch.nn.modules.batchnorm._BatchNorm) or not part.training:
            continue
        if part.momentum is None and part.track_running_stats:
            where = f"module {name!r}" if name else "the module"
            raise TorchError(
                f"{where} is a {type(part).__name__} with momentum=None, whose statistics "
                "depend on the number of steps; set a momentum, such as 0.1, or evaluate it by "
                "eval()"
            )


def _apart(given: Any) -> Any:
    """Return the arguments with repeated tensors cloned, because torch would merge them."""
    seen = set[int]()

    def own(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in seen:
            return tensor.clone()
        seen.add(id(tensor))
        return tensor

    return torch.utils._pytree.tree_map_only(torch.Tensor, own, given)


def _compositions(program: ExportedProgram) -> dict[Any, Callable[..., Any]]:
    """Return torch's decompositions of the operators that have no rule in graphc."""
    targets = {node.target for node in _nodes(program.graph_module)}
    lacking = {
        target
        for target in targets
        if isinstance(target, torch._ops.OpOverload) and RULES.find(operator_of(target)) is None
    }
    if not lacking:
        return {}
    known = torch.export.default_decompositions()
    return {target: known[target] for target in lacking if target in known}


def _nodes(module: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yield the nodes that compute, including those of subgraphs."""
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (node for node in part.graph.nodes if node.op == "call_function")


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Convert exceptions of torch into a `TorchError` of one sentence."""
    try:
        yield
    except Exception as error:  # torch raises errors of many kinds for what it cannot trace
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        first = lines[0] if lines else ""
        raise TorchError(f"{what}: {type(error).__name__}: {first}") from error


_LSTM_LOCK = threading.RLock()


@contextlib.contextmanager
def _final_states_of_lstm() -> Iterator[None]:
    """Correct the shapes of final states of LSTMs, which below torch 2.13 keep an axis of 1."""
    if not is_before(torch.__version__, (2, 13)):
        yield
        return
    with _LSTM_LOCK:
        yield from _corrected_lstm()


def _corrected_lstm() -> Iterator[None]:
    layer = decompositions.one_layer_lstm

    def corrected(*args: Any, **kwargs: Any) -> Any:
        found, states = layer(*args, **kwargs)
        return found, tuple(state.reshape(state.shape[-2:]) for state in states)

    decompositions.one_layer_lstm = corrected
    try:
        yield
    finally:
        decompositions.one_layer_lstm = layer


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what torch.export prints: warnings, and the partial graph of a failed export.

    Errors name the problem themselves. Logs that the user requests by TORCH_LOGS remain.
    """
    tracer = _trace.__dict__
    handlers = _torch_handlers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracer["print"] = _nothing
        for handler in handlers:
            handler.addFilter(_is_no_warning)
        try:
            yield
        finally:
            tracer.pop("print", None)
            for handler in handlers:
                handler.removeFilter(_is_no_warning)


def _torch_handlers() -> set[logging.Handler]:
    """Return the handlers of all loggers of torch; several loggers have handlers of their own."""
    loggers = logging.root.manager.loggerDict
    names = [name for name in loggers if name.partition(".")[0] == "torch"]
    return {handler for name in names for handler in logging.getLogger(name).handlers}


def _nothing(*lines: object, file: object = None) -> None:
    """Print nothing."""


def _is_no_warning(record: logging.LogRecord) -> bool:
    return record.levelno != logging.WARNING
