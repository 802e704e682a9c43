"""The memory of eager training steps of torch, recorded on tensors without data.

A step itself runs under torch's `FakeTensorMode`: forward pass, loss, backward pass, optimizer. A
dispatch mode records when each storage is created and freed (`recorder`). Kernels allocate
workspaces that no dispatch mode sees; `workspaces` and `gpu_workspaces` have their bytes.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from graphc.devices.device import NATIVE_CPU, Device
from graphc.errors import GraphcError, TorchError, place_of
from graphc.torch.budget.trace.without_data import Call, without_data
from graphc.torch.fit.gpu_rules import gpu_rules
from graphc.torch.fit.known_values import known_values
from graphc.torch.fit.recorder import KINDS, STATES, Recorder
from graphc.torch.private import run_backward

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]
"""A function that returns an optimizer of a module."""


@dataclass(frozen=True)
class EagerPeak:
    """The peak of two eager training steps, and the allocations that lead to it.

    `trace` lists allocations as (key, bytes) and releases as (key, -bytes), in order of time. The
    first step creates the optimizer's states; between the steps, gradients are freed. The second
    step, from position `second` on, finds the memory that an allocator has cached, as all later
    steps do; its keys are those of the first step plus the number of keys in `recorder`, and `ops`
    has the number of the op of each entry. `by_kind_bytes` are the bytes live at the peak, in the
    order of `KINDS`. `update_bytes` is the peak while the optimizer of the second step runs, and
    `seconds` the roofline time of a step.
    """

    peak_bytes: int
    by_kind_bytes: Mapping[str, int]
    update_bytes: int
    seconds: float
    trace: Sequence[tuple[int, int]]
    second: int
    ops: Sequence[int]
    recorder: Recorder


def eager_peak(
    call: Call,
    optimizer: Optimizer | None = None,
    *,
    device: Device = NATIVE_CPU,
    autocast: torch.dtype | None = None,
    is_accumulating: bool = False,
) -> EagerPeak:
    """Return the peak of two training steps; in the second one, optimizer states exist.

    A call is a module, a loss or None, positional and keyword arguments, as in
    `graphc.torch.plan`. Without a loss, the module returns it, or an output with the attribute
    ``loss``; other outputs are averaged. With `is_accumulating`, gradients of an earlier
    micro-batch exist. For the profile of a GPU, the rules of `gpu_rules` apply. No tensor has data,
    and nothing runs except single convolutions and products whose workspaces a CPU needs. Raises
    `TorchError` if the step needs the values of tensors.
    """
    mode, (module, loss_fn, args, kwargs) = without_data(call)
    parameters = [each for each in module.parameters() if each.requires_grad]
    recorder, inputs = Recorder(device), tree_leaves((args, kwargs))
    recorder.resident("parameters", module.named_parameters())
    recorder.resident("buffers", module.named_buffers())
    recorder.resident("inputs", ((f"input {n}", each) for n, each in enumerate(inputs)))
    begin = len(recorder.trace)
    with mode:
        made = optimizer(module) if optimizer is not None and parameters else None
    rules: AbstractContextManager[object] = contextlib.nullcontext()
    if device.kind == "cuda":
        rules = gpu_rules()
        for group in made.param_groups if made is not None else ():
            group["foreach"] = not group.get("fused")
    precision = torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None)
    with mode, known_values(), rules, recorder, recorder.watching(module), _as_torch_error(module):
        for _ in range(1 + is_accumulating):
            recorder.forward()
            with precision:
                found = module(*(args[:-1] if loss_fn else args), **kwargs)
                loss = loss_fn(found, args[-1]) if loss_fn else found
            loss, found = scalar_of(loss), None
            recorder.backward()
            run_backward(loss)  # which may recompute activations, under the rules
            del loss
        recorder.rename("gradients", (each.grad for each in parameters))
        recorder.trains_all = all(each.grad is not None for each in parameters)
        recorder.update()
        if made is not None:
            made.step()
            recorder.rename(STATES, tree_leaves([*made.state.values()]))
    return _two_steps(recorder, begin)


def _two_steps(recorder: Recorder, begin: int) -> EagerPeak:
    """Return the peak of the recorded step and of one after it.

    The step is the trace from position `begin` on.
    """
    kinds, count = recorder.kinds, len(recorder.kinds)
    before, step = recorder.trace[:begin], _in_order(recorder.trace[begin:])
    stays = recorder.workspaces | {key for key, kind in enumerate(kinds) if kind == STATES}
    held: Counter[int] = Counter()
    for key, size in step:
        held[key] += size
    freed = [(key, -size) for key, size in held.items() if size > 0 and key not in stays]
    again = [(key + count, size) for key, size in step if key not in stays]
    entries = zip(step, recorder.op_of[begin:], strict=True)
    ops = [op for (key, _), op in entries if key not in stays]
    return _peak_of([*before, *step, *freed, *again], ops, recorder)


def _peak_of(trace: Sequence[tuple[int, int]], ops: Sequence[int], recorder: Recorder) -> EagerPeak:
    live = list(accumulate(size for _, size in trace))
    at = max(range(len(live)), key=live.__getitem__)
    by_kind: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
    for key, size in trace[: at + 1]:
        by_kind[recorder.kinds[key % len(recorder.kinds)]] += size
    second = len(trace) - len(ops)
    updates = (live[second + n] for n, op in enumerate(ops) if recorder.ops[op].phase == "update")
    return EagerPeak(
        live[at],
        dict(by_kind),
        max(updates, default=0),
        sum(op.seconds for op in recorder.ops),
        trace,
        second,
        ops,
        recorder,
    )


def scaled(found: EagerPeak, share: Callable[[str, str], float]) -> EagerPeak:
    """Return the peak of the same steps if tensors had other sizes.

    `share` returns the factor for a kind and for the phase of the op that creates a tensor, which
    is empty for tensors before the step.
    """
    recorder, factors = found.recorder, [1.0] * len(found.recorder.kinds)
    for (key, size), op in zip(recorder.trace, recorder.op_of, strict=True):
        if size > 0:
            phase = recorder.ops[op].phase if op >= 0 else ""
            factors[key] = share(recorder.kinds[key], phase)

    def resized(key: int, size: int) -> int:
        count = math.ceil(abs(size) * factors[key % len(factors)])
        return count if size > 0 else -count

    trace = [(key, resized(key, size)) for key, size in found.trace]
    return _peak_of(trace, found.ops, recorder)


def _in_order(trace: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a trace with releases that follow each other in order of their keys.

    Autocast frees its copies of weights in the order of their addresses, which vary.
    """
    runs = groupby(trace, key=lambda entry: entry[1] < 0)
    return [entry for is_free, run in runs for entry in (sorted(run) if is_free else run)]


def scalar_of(found: Any) -> torch.Tensor:
    """Return the loss of an output: its attribute ``loss``, itself, or a mean of its tensors."""
    loss = getattr(found, "loss", None)
    if loss is None:
        loss = found
    if isinstance(loss, torch.Tensor) and loss.dim() == 0:
        return loss
    tensors = [e for e in tree_leaves(loss) if isinstance(e, torch.Tensor) and e.requires_grad]
    if not tensors:
        raise TorchError("no output or loss of the step depends on a parameter to train")
    return cast(torch.Tensor, sum(each.float().mean() for each in tensors))


@contextlib.contextmanager
def _as_torch_error(module: nn.Module) -> Iterator[None]:
    """Raise the errors of a step on tensors without data as `TorchError`."""
    try:
        yield
    except GraphcError:
        raise
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise TorchError(
            f"a training step of {type(module).__name__} fails on tensors without data"
            f"{f' at {place_of(error)}' if place_of(error) else ''}: {type(error).__name__}: {text}"
        ) from error
