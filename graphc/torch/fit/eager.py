"""The memory of an eager training step of torch, recorded on tensors without data.

The step itself runs under torch's `FakeTensorMode`: forward pass, loss, backward pass, optimizer.
A dispatch mode records when each storage is created and freed. Kernels allocate workspaces that
no dispatch mode sees; `workspaces` has formulas for them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphc.errors import GraphcError, TorchError, place_of
from graphc.ir.device import NATIVE_CPU, Device
from graphc.torch.budget.without_data import Call, without_data
from graphc.torch.fit import gpu_workspaces
from graphc.torch.fit.gpu_rules import GpuRules
from graphc.torch.fit.known_values import known_values
from graphc.torch.fit.roofline import seconds_of
from graphc.torch.fit.workspaces import LOSSES_PER_ELEMENT, workspace_bytes
from graphc.torch.private import run_backward

aten = torch.ops.aten

Optimizer = Callable[[nn.Module], torch.optim.Optimizer]
"""A function that returns an optimizer of a module."""

KINDS = (
    "parameters", "buffers", "inputs", "gradients", "optimizer states", "activations",
    "logits and loss", "workspace",
)  # fmt: skip
"""Kinds of bytes.

Logits and loss are all bytes created from the last module with parameters on, and their gradients.
Workspace is everything else that the backward pass and the optimizer create.
"""


@dataclass(frozen=True)
class EagerPeak:
    """The peak of two eager training steps, and the allocations that lead to it.

    `trace` lists allocations as (key, bytes) and releases as (key, -bytes), in order of time. The
    first step creates the optimizer's states; between the steps, gradients are freed. The second
    step finds the memory that an allocator has cached, which later steps reuse. `by_kind_bytes` are
    the bytes live at the peak, in the order of `KINDS`. `update_bytes` is the peak while the
    optimizer of the second step runs.
    """

    peak_bytes: int
    by_kind_bytes: Mapping[str, int]
    update_bytes: int
    seconds: float
    trace: Sequence[tuple[int, int]]


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
    micro-batch exist. For the profile of a GPU, the rules of `gpu_rules` apply. Nothing runs and no
    tensor has data. Raises `TorchError` if the step needs the values of tensors.
    """
    mode, (module, loss_fn, args, kwargs) = without_data(call)
    parameters = [each for each in module.parameters() if each.requires_grad]
    recorder = _Recorder(device)
    resident = {"parameters": module.parameters(), "buffers": module.buffers()}
    resident["inputs"] = tree_leaves((args, kwargs))
    for kind, tensors in resident.items():
        recorder.resident(kind, tensors)
    begin = len(recorder.trace)
    with mode:
        made = optimizer(module) if optimizer is not None and parameters else None
    rules: AbstractContextManager[object] = contextlib.nullcontext()
    if device.kind == "cuda":
        rules = GpuRules()
        for group in made.param_groups if made is not None else ():
            group["foreach"] = True
    precision = torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None)
    with mode, known_values(), rules, recorder, recorder.watching(module), _as_torch_error(module):
        for _ in range(1 + is_accumulating):
            recorder.phase = "activations"
            with precision:
                found = module(*(args[:-1] if loss_fn else args), **kwargs)
                loss = loss_fn(found, args[-1]) if loss_fn else found
            loss, found = _scalar(loss), None
            recorder.phase = "backward of logits and loss"
            run_backward(loss)  # which may recompute activations, under the rules
            del loss
        recorder.rename("gradients", (each.grad for each in parameters))
        recorder.phase, update = "workspace", len(recorder.trace)
        if made is not None:
            made.step()
            recorder.rename("optimizer states", tree_leaves([*made.state.values()]))
    return recorder.peak(begin, update)


def _scalar(found: Any) -> torch.Tensor:
    """Return the loss of an output: its attribute ``loss``, itself, or a mean of its tensors."""
    loss = getattr(found, "loss", None)
    if loss is None:
        loss = found
    if isinstance(loss, torch.Tensor) and loss.dim() == 0:
        return loss
    tensors = [e for e in tree_leaves(loss) if isinstance(e, torch.Tensor) and e.requires_grad]
    return cast(torch.Tensor, sum(each.float().mean() for each in tensors))


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    """A record of the storages of one kind of device, by allocation."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device, self.phase = device, ""
        self.seconds = 0.0
        """The roofline time of the ops so far."""
        self.trace: list[tuple[int, int]] = []
        self.kinds: list[str] = []
        """The kind of each key."""
        self._known: dict[int, tuple[int, int, weakref.ref[Any]]] = {}
        """Key, bytes and storage, by the address of the storage."""
        self._head = 0
        """The first key of logits and loss."""
        self._reserved: set[tuple[str, str]] = set()
        self._workspaces: set[int] = set()
        """Keys of workspaces that stay, and the libraries and threads that have one."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an op, and record its workspace and its new results."""
        if function is aten._grouped_mm.default and args[0].dtype == torch.float32:
            # The formula of shapes refuses float32, which the kernel of a CPU accepts.
            narrow = (each.bfloat16() for each in args[:2])
            result = function(*narrow, *args[2:], **(kwargs or {})).float()
        else:
            result = function(*args, **(kwargs or {}))
        self.seconds += seconds_of(self.device, function, args, kwargs or {}, result)
        for each in tree_leaves(result):
            self._note(each, _bytes_of_loss(function, args))
        if self.device.kind == "cuda":
            self._reserve_for_product(function)
            needed = gpu_workspaces.workspace_bytes(function, args)
        else:
            needed = workspace_bytes(function, args, result)
        if needed:
            key = self._allocate(needed)
            self.trace.append((key, -needed))
        return result

    def resident(self, kind: str, tensors: Iterable[Any]) -> None:
        """Record tensors that exist before the step."""
        self.phase = kind
        for each in tensors:
            self._note(each)

    def rename(self, kind: str, tensors: Iterable[Any]) -> None:
        """Change the kind of the storages of tensors that are live."""
        for each in tensors:
            if self._is_counted(each):
                self.kinds[self._known[each.untyped_storage()._cdata][0]] = kind

    @contextlib.contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Find the first key of logits and loss, and the end of their backward pass."""

        def begins(*_: Any) -> None:
            if self.phase == "activations":
                self._head = len(self.kinds)

        def learned(_: Any) -> None:
            if self.phase != "workspace":
                self.phase = "workspace"
                last = len(self.kinds)
                self.kinds[self._head : last] = ["logits and loss"] * (last - self._head)

        leaves = (m for m in module.modules() if any(True for _ in m.parameters(recurse=False)))
        hooks = [each.register_forward_pre_hook(begins) for each in leaves]
        hooks += [
            each.register_post_accumulate_grad_hook(learned)
            for each in module.parameters()
            if each.requires_grad
        ]
        yield
        for hook in hooks:
            hook.remove()

    def peak(self, begin: int, update: int) -> EagerPeak:
        """Return the peak of the recorded step and of one after it.

        The step is the trace from position `begin` on; its optimizer runs from `update` on.
        """
        stays = self._workspaces.copy()
        stays |= {key for key, kind in enumerate(self.kinds) if kind == "optimizer states"}
        held: Counter[int] = Counter()
        for key, size in self.trace[begin:]:
            held[key] += size
        freed = [(key, -size) for key, size in held.items() if size > 0 and key not in stays]
        count = len(self.kinds)
        second = [(key + count, size) for key, size in self.trace[begin:] if key not in stays]
        updating = sum(key not in stays for key, _ in self.trace[update:])
        trace = self.trace + freed + second
        live = list(accumulate(size for _, size in trace))
        at = max(range(len(live)), key=live.__getitem__)
        kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        for key, size in trace[: at + 1]:
            kinds[self.kinds[key % count]] += size
        last = max(live[len(live) - updating :], default=0)
        return EagerPeak(live[at], dict(kinds), last, self.seconds, trace)

    def _reserve_for_product(self, function: Any) -> None:
        """Record what a thread keeps for products on a GPU; autograd has a thread of its own."""
        thread = "forward" if self.phase == "activations" else "backward"
        for name, size in gpu_workspaces.kept_bytes(function, self.device).items():
            place = name, thread if name == gpu_workspaces.CUBLAS else ""
            if place not in self._reserved:
                self._reserved.add(place)
                self._workspaces.add(self._allocate(size, "workspace"))

    def _note(self, each: Any, least_bytes: int = 0) -> None:
        if not self._is_counted(each):
            return
        storage = each.untyped_storage()
        address, size = storage._cdata, max(storage.nbytes(), least_bytes)
        if address not in self._known and size:
            key = self._allocate(size)
            self._known[address] = key, size, weakref.ref(storage, lambda _: self._free(address))

    def _is_counted(self, each: Any) -> bool:
        return isinstance(each, FakeTensor)

    def _allocate(self, size: int, kind: str = "") -> int:
        self.kinds.append(kind or self.phase)
        self.trace.append((len(self.kinds) - 1, size))
        return len(self.kinds) - 1

    def _free(self, address: int) -> None:
        key, size, _ = self._known.pop(address)
        self.trace.append((key, -size))


def _bytes_of_loss(function: Any, args: Any) -> int:
    return int(args[0].nbytes) if function in LOSSES_PER_ELEMENT else 0


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
