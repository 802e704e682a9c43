"""Roles of a module's parameters and buffers, derived from the nodes that read and write them."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind

from graphc.errors import TorchError
from graphc.importing.roles import Role, chosen_names
from graphc.importing.weights import Weight
from graphc.torch.importing.calls import operator_of
from graphc.torch.importing.tensors import weight_of

HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)

RUNNING = {"batch_norm": (3, 4), "instance_norm": (3, 4)}
"""Maps operators to the indices of arguments that are running statistics."""


@dataclass(frozen=True, eq=False)
class ModuleTensor:
    """A tensor of a module, with its weight under its first name and its role."""

    tensor: torch.Tensor
    weight: Weight
    role: Role


def held_tensors(
    program: ExportedProgram,
    trainable: bool | str | Collection[str] | None,
    is_loaded: bool = False,
) -> dict[str, ModuleTensor]:
    """Return the module's tensor for each placeholder that is not an input; tied tensors are one.

    If the program `is_loaded` from a file, tied tensors are separate objects with the same memory.
    Raises `OptionError` if `trainable` matches no tensor, and `TorchError` if training or a call
    would change a tensor that overlaps another in memory.
    """
    groups: dict[object, list[InputSpec]] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind in HELD:
            groups.setdefault(_identity(_tensor(program, spec)), []).append(spec)
    tensors = {specs[0].target: _tensor(program, specs[0]) for specs in groups.values()}
    weights = {name: weight_of(name, tensor) for name, tensor in tensors.items()}
    chosen = chosen_names(trainable, weights)
    readers = _Readers(program)
    found: dict[str, ModuleTensor] = {}
    for specs in groups.values():
        name = specs[0].target
        role = readers.role(specs, tensors[name]).with_choice(weights[name], chosen)
        held = ModuleTensor(tensors[name], weights[name], role)
        found.update((spec.arg.name, held) for spec in specs)
        others = [spec for spec in specs if _tensor(program, spec) is not tensors[name]]
        if others and role.is_trained and not is_loaded:
            raise _overlapping(name, others[0].target)
    _refuse_overlaps(list(dict.fromkeys(found.values())))
    return found


def _refuse_overlaps(tensors: Sequence[ModuleTensor]) -> None:
    """Raise `TorchError` if a tensor that changes shares elements with another tensor."""
    by_storage: dict[int, list[ModuleTensor]] = {}
    for each in tensors:
        if each.tensor.numel():
            storage = each.tensor.untyped_storage()
            by_storage.setdefault(storage.data_ptr() or storage._cdata, []).append(each)
    for group in by_storage.values():
        for first, second in itertools.combinations(group, 2):
            changes = any(e.role.is_trained or e.role.kind == "statistic" for e in (first, second))
            if changes and _overlap(first.tensor, second.tensor):
                raise _overlapping(first.weight.name, second.weight.name)


def _overlapping(first: str, second: str | None) -> TorchError:
    return TorchError(
        f"{first!r} and {second!r} overlap in memory, so a step that changes one changes the "
        "other, which graphc cannot do; assign the same tensor to both, or clone one"
    )


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors of one storage have bytes in common."""
    ends = [_extent(each) for each in (first, second)]
    if ends[0][1] <= ends[1][0] or ends[1][1] <= ends[0][0]:
        return False
    size = max(end for _, end in ends)
    taken = [torch.zeros(size, dtype=torch.bool) for _ in range(2)]
    for each, mask in zip((first, second), taken, strict=True):
        width = each.element_size()
        strides = (*(stride * width for stride in each.stride()), 1)
        mask.as_strided((*each.shape, width), strides, each.storage_offset() * width).fill_(True)
    return bool((taken[0] & taken[1]).any())


def _tensor(program: ExportedProgram, spec: InputSpec) -> torch.Tensor:
    found = program.state_dict.get(spec.target, program.constants.get(spec.target))
    assert isinstance(found, torch.Tensor), f"{spec.target} is a tensor"
    return found


def _identity(tensor: torch.Tensor) -> object:
    """Return a key that is equal for tensors with the same memory, shape, strides and dtype."""
    if not tensor.numel():
        return id(tensor)
    form = (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
    return (tensor.untyped_storage().data_ptr(), *form)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of a tensor in its storage, and the end of the last one."""
    width, first = tensor.element_size(), tensor.storage_offset()
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first * width, (first + last + 1) * width


class _Readers:
    """Uses of a module's tensors, and the buffers that a call changes."""

    def __init__(self, program: ExportedProgram) -> None:
        nodes = program.graph.nodes
        self.placeholders = {node.name: node for node in nodes if node.op == "placeholder"}
        made = {node.name: node for node in nodes}
        self.changed: Mapping[str, torch.fx.Node] = {
            str(spec.target): made[spec.arg.name]
            for spec in program.graph_signature.output_specs
            if spec.kind == OutputKind.BUFFER_MUTATION
        }

    def role(self, specs: Sequence[InputSpec], tensor: torch.Tensor) -> Role:
        """Return the role of the tensor of these placeholders."""
        nodes = [self.placeholders[spec.arg.name] for spec in specs]
        users = [user for node in nodes for user in node.users]
        if not users:
            return Role("constant", "used by no operator", False)
        if any(spec.kind == InputKind.PARAMETER for spec in specs):
            learns = tensor.requires_grad
            reason = "requires a gradient" if learns else "requires no gradient"
            return Role("parameter", f"a parameter that {reason}", learns)
        if any(_is_running(user, node) for node in nodes for user in node.users):
            return Role("statistic", "running statistics of a norm", False)
        changes = [self.changed[s.target] for s in specs if s.target in self.changed]
        if not changes:
            return Role("constant", "a buffer", False)
        if not tensor.is_floating_point() and users == changes and _counts(changes[0]):
            return Role("constant", "a counter that no other node reads", False)
        return Role("statistic", "a buffer that a call changes", False)


def _is_running(user: torch.fx.Node, buffer: torch.fx.Node) -> bool:
    name = operator_of(user.target)
    places = next((p for norm, p in RUNNING.items() if norm in name), ())
    return any(user.args[i] is buffer for i in places if i < len(user.args))


def _counts(change: torch.fx.Node) -> bool:
    """Return whether a change adds an integer and its result is used only as the new buffer."""
    adds = operator_of(change.target) == "add" and isinstance(change.args[1], int)
    return adds and all(user.op == "output" for user in change.users)
