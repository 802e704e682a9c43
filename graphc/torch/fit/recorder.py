"""A record of the allocations of a training step that runs on tensors without data."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphc.devices.device import Device
from graphc.torch.fit import gpu_workspaces
from graphc.torch.fit.roofline import seconds_of
from graphc.torch.fit.workspaces import LOSSES_PER_ELEMENT, workspace_bytes
from graphc.torch.private import current_autograd_node, is_engine_of_autograd, sequence_number

aten = torch.ops.aten

ACTIVATIONS, GRADIENTS = "activations", "gradients"
HEAD, STATES = "logits and loss", "optimizer states"

KINDS = (
    "parameters", "buffers", "inputs", GRADIENTS, STATES, ACTIVATIONS, HEAD, "workspace",
)  # fmt: skip
"""Kinds of bytes.

Logits and loss are all bytes created from the last module with parameters on, and their gradients.
Workspace is everything else that the backward pass and the optimizer create.
"""

WRITES = {
    aten.scatter, aten.scatter_add, aten.index_add, aten.index_put, aten.index_fill, aten.put,
}  # fmt: skip
"""Ops that write into zeros in formulas of gradients: of gather, indexing, max, topk, trace, take.

They are in place unless a dispatch mode is active (``areAnyTensorSubclassLike`` in
torch/csrc/autograd/FunctionsManual.cpp).
"""


@dataclass(frozen=True)
class Op:
    """An op of a step: the path of its module, its name, phase and roofline time.

    Phases are ``forward``, ``gradient``, ``mirror`` (recomputed activations) and ``update``.
    """

    scope: str
    name: str
    phase: str
    seconds: float


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """A record of the storages of one kind of device.

    `trace` lists allocations as (key, bytes) and releases as (key, -bytes), in order of time.
    `op_of` has the number of the op of each entry, `kinds` and `types` those of each key.
    """

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device
        self.trace: list[tuple[int, int]] = []
        self.op_of: list[int] = []
        self.ops: list[Op] = []
        self.kinds: list[str] = []
        self.types: list[str] = []
        self.names: list[str] = []
        """Names of the first keys, which exist before the step."""
        self.workspaces: set[int] = set()
        """Keys of workspaces that libraries keep."""
        self.trains_all = True
        """False if a trainable parameter gets no gradient."""
        self._kind = self._phase = ""
        """The kind of new allocations, and the phase of the step."""
        self._known: dict[int, tuple[int, int, weakref.ref[Any]]] = {}
        """Key, bytes and storage, by the address of the storage."""
        self._head = 0
        """The first key of logits and loss."""
        self._reserved: set[tuple[str, str]] = set()
        """Libraries, and threads, that keep a workspace."""
        self._written: tuple[int, int] | None = None
        """Storages of the first operand and the result, if torch runs the last op in place."""
        self._zeros: set[int] = set()
        """Keys of tensors that are created as zeros."""
        self._node: tuple[str, int] | None = None
        self._first_of_node = 0
        """The node of autograd that runs, by name and number, and its first key."""
        self._scopes: list[str] = []
        """Paths of the modules whose forward pass runs, the innermost last."""
        self._scope_of: dict[int, str] = {}
        """The path of the module of a node of autograd, by its sequence number."""

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
        self._add_op(function, seconds_of(self.device, function, args, kwargs or {}, result))
        self._enter_node()
        first = len(self.kinds)
        for each in tree_leaves(result):
            self._note(each, _bytes_of_loss(function, args))
        if function.overloadpacket in (aten.zeros, aten.new_zeros, aten.zeros_like):
            self._zeros.add(first)
        self._written = None
        if self._is_in_place(function, args, sys._getframe(1)):
            self._written = args[0].untyped_storage()._cdata, result.untyped_storage()._cdata
        if self.device.kind == "cuda":
            self._reserve_for_product(function)
            needed = gpu_workspaces.workspace_bytes(function, args)
        else:
            needed = workspace_bytes(function, args, result)
        if needed:
            self._add(self._allocate(needed, "workspace"), -needed)
        return result

    def resident(self, kind: str, tensors: Iterable[tuple[str, Any]]) -> None:
        """Record named tensors that exist before the step."""
        self._kind = kind
        for name, each in tensors:
            self._note(each)
            self.names += [name] * (len(self.kinds) - len(self.names))

    def forward(self) -> None:
        """Begin a forward pass."""
        self._kind, self._phase = ACTIVATIONS, "forward"

    def backward(self) -> None:
        """Begin a backward pass; until the first gradient of a parameter, it is of the loss."""
        self._kind, self._phase = HEAD, "gradient"

    def update(self) -> None:
        """Begin the optimizer's update."""
        self._kind, self._phase = "workspace", "update"

    def rename(self, kind: str, tensors: Iterable[Any]) -> None:
        """Change the kind of the storages of tensors that are live."""
        for each in tensors:
            if isinstance(each, FakeTensor):
                self.kinds[self._known[each.untyped_storage()._cdata][0]] = kind

    @contextlib.contextmanager
    def watching(self, module: nn.Module) -> Iterator[None]:
        """Follow the modules whose forward passes run, and the first gradient of a parameter."""

        def enters(name: str, is_leaf: bool) -> Any:
            def hook(*_: Any) -> None:
                self._scopes.append(name)
                if is_leaf and self._kind == ACTIVATIONS:
                    self._head = len(self.kinds)

            return hook

        def leaves(*_: Any) -> None:
            self._scopes.pop()

        def learned(_: Any) -> None:
            if self._kind == HEAD:
                self._kind = "workspace"
                last = len(self.kinds)
                self.kinds[self._head : last] = [HEAD] * (last - self._head)

        hooks = []
        for name, each in module.named_modules():
            is_leaf = any(True for _ in each.parameters(recurse=False))
            hooks.append(each.register_forward_pre_hook(enters(name, is_leaf)))
            hooks.append(each.register_forward_hook(leaves))
        for each in module.parameters():
            if each.requires_grad:
                hooks.append(each.register_post_accumulate_grad_hook(learned))
        yield
        for hook in hooks:
            hook.remove()

    def _add_op(self, function: Any, seconds: float) -> None:
        scope, phase, node = "", self._phase, current_autograd_node()
        if self._scopes:
            scope = self._scopes[-1]
            phase = "mirror" if phase == "gradient" else phase
            self._scope_of.setdefault(sequence_number() - 1, scope)
        elif node is not None:
            scope = self._scope_of.get(node._sequence_nr(), "")
        self.ops.append(Op(scope, function.overloadpacket.__name__, phase, seconds))

    def _enter_node(self) -> None:
        """Note the first key of the node of autograd that runs."""
        node = current_autograd_node()
        running = None if node is None else (node.name(), node._sequence_nr())
        if running != self._node:
            self._node, self._first_of_node = running, len(self.kinds)

    def _is_in_place(self, function: Any, args: Any, caller: FrameType) -> bool:
        """Return True if autograd runs an op in place where there is no dispatch mode.

        Under a mode, it runs the op out of place and then frees the first operand. It adds a
        gradient in place to one that only its buffer holds. A view shares its storage with its
        base, so no gradient is added to it in place. A sum in the formula of a node has the same
        caller, but its first operand is a result of that node. So is the first gradient of a node
        that returns two gradients of one value. Formulas of gradients of indexing write into zeros
        that the node has created.
        """
        is_write = function.overloadpacket in WRITES
        if not (is_write or function is aten.add.Tensor) or not is_engine_of_autograd(caller):
            return False
        storages = [each.untyped_storage()._cdata for each in args if isinstance(each, FakeTensor)]
        if torch.is_grad_enabled() or args[0]._is_view() or storages[0] in storages[1:2]:
            return False
        key = self._known[storages[0]][0] if storages[0] in self._known else 0
        if is_write:
            # The counts of a mean over indices are written into a copy.
            is_mean = "Reduce" in current_autograd_node().name()
            return key in self._zeros and key >= self._first_of_node and not is_mean
        edges = current_autograd_node().next_functions
        return key < self._first_of_node or len(set(edges)) < len(edges)

    def _reserve_for_product(self, function: Any) -> None:
        """Record what a thread keeps for products on a GPU; autograd has a thread of its own."""
        thread = "forward" if self._phase == "forward" else "backward"
        for name, size in gpu_workspaces.kept_bytes(function, self.device).items():
            place = name, thread if name == gpu_workspaces.CUBLAS else ""
            if place not in self._reserved:
                self._reserved.add(place)
                self.workspaces.add(self._allocate(size, "workspace", name))

    def _note(self, each: Any, least_bytes: int = 0) -> None:
        if not isinstance(each, FakeTensor):
            return
        storage = each.untyped_storage()
        address, size = storage._cdata, max(storage.nbytes(), least_bytes)
        if address not in self._known and size:
            described = f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}"
            key = self._allocate(size, described=described)
            self._known[address] = key, size, weakref.ref(storage, lambda _: self._free(address))

    def _allocate(self, size: int, kind: str = "", described: str = "") -> int:
        self.kinds.append(kind or self._kind)
        self.types.append(described)
        self._add(len(self.kinds) - 1, size)
        return len(self.kinds) - 1

    def _free(self, address: int) -> None:
        key, size, _ = self._known.pop(address)
        operand, result = self._written or (-1, -1)
        if address == operand and result in self._known:
            new, new_size, storage = self._known[result]
            if new == len(self.kinds) - 1 and new_size == size:
                self._forget(new)
                self._known[result] = key, size, storage
                return
        self._add(key, -size)

    def _forget(self, new: int) -> None:
        """Remove the last key."""
        at = len(self.trace) - 1
        while self.trace[at][0] != new:
            at -= 1
        del self.trace[at], self.op_of[at], self.kinds[new], self.types[new]

    def _add(self, key: int, size: int) -> None:
        self.trace.append((key, size))
        self.op_of.append(len(self.ops) - 1)


def _bytes_of_loss(function: Any, args: Any) -> int:
    return int(args[0].nbytes) if function in LOSSES_PER_ELEMENT else 0
