"""Import of a module's exported graph: converts each node into graphc values.

If all operands of a node are known, torch computes it at import time. Otherwise a rule converts
it. Unsupported features are collected, and raised as one error after the last node.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec
from torch.utils import _pytree as pytree

from graphc.errors import GraphcError, TorchError
from graphc.importing.calls import UnsupportedError
from graphc.importing.names import Names, mangled, state_name
from graphc.importing.network import InitialStates, Network, Reported
from graphc.importing.problems import Missing, Place, Problems, told
from graphc.importing.roles import initial
from graphc.importing.weights import Weight
from graphc.ir.builder import input as graph_input
from graphc.ir.builder import scope
from graphc.ir.graph import Input, State, Value
from graphc.ops.changed_state import with_changes
from graphc.ops.shape import full
from graphc.torch.importing.calls import RULES, Moved, TorchCall, operator_of, type_of
from graphc.torch.importing.empty import is_empty, without_elements
from graphc.torch.importing.export import exported
from graphc.torch.importing.folding import folded
from graphc.torch.importing.inner import inner_graph
from graphc.torch.importing.states import ModuleTensor, held_tensors
from graphc.torch.importing.symbols import Symbols
from graphc.torch.importing.tensors import known_weight

Environment = dict[torch.fx.Node, Any]
"""Results of nodes: operands, tuples of them, `Missing`, or numbers."""


def load(
    module: torch.nn.Module | ExportedProgram | str | os.PathLike[str],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    trainable: bool | str | Collection[str] | None,
    weights: bool,
) -> Network:
    """Import a module; implements `graphc.torch.load`."""
    program = exported(module, args, kwargs, trainable is not False)
    is_loaded = not isinstance(module, torch.nn.Module)
    return Importer(program, held_tensors(program, trainable, is_loaded), weights).network()


class Importer:
    """The import of one exported module."""

    def __init__(
        self, program: ExportedProgram, held: Mapping[str, ModuleTensor], reads_weights: bool
    ) -> None:
        self.program, self.held = program, held
        self.problems = Problems()
        self._state_names, self._input_names = Names(), Names()
        self._states: dict[ModuleTensor, State] = {}
        self._initial: dict[str, Weight] = {}
        self._inputs: dict[str, Input] = {}
        self._constants: dict[int, tuple[torch.Tensor, Value]] = {}
        self._symbols = Symbols()
        for each in dict.fromkeys(held.values()):
            if each.role.kind != "constant" and not is_empty(each.tensor):
                self._make_state(each, reads_weights)

    # --- network ---

    def network(self) -> Network:
        """Return the network; raises one `TorchError` for all unsupported features."""
        environment: Environment = {}
        signature = self.program.graph_signature
        kinds = {spec.arg.name: spec for spec in signature.input_specs}
        nodes = list(self.program.graph.nodes)
        for node in nodes:
            if node.op == "placeholder":
                environment[node] = self._placeholder(node, kinds[node.name].kind)
        found = self.run(self.program.graph_module, environment)
        outputs, changes = self._outputs(found, signature.output_specs)
        message = self.problems.message()
        if message is not None:
            raise TorchError(message)
        outputs = {name: with_changes(value, changes) for name, value in outputs.items()}
        names = {name: value.name for name, value in self._inputs.items()}
        names |= {spec: state.name for spec, state in self._named_states()}
        return Network(self._inputs, outputs, InitialStates(self._initial), self._report(), names)

    def _make_state(self, held: ModuleTensor, reads_weights: bool) -> None:
        """Create the state of a parameter, or of a buffer that a step changes."""
        weight, role = held.weight, held.role
        try:
            type = type_of(held.tensor)
        except GraphcError as error:
            self.problems.add(role.kind, weight.name, error)
            return
        is_scale = weight.name.rpartition(".")[2] in ("weight", "running_var")
        found = State(
            type,
            name=self._state_names.take(state_name(weight.name)),
            initial=initial(type, float(is_scale)),
            role="statistic" if role.kind == "statistic" else "parameter",
            trainable=role.is_trained,
        )
        self._states[held] = found
        if reads_weights:
            self._initial[found.name] = weight

    def _placeholder(self, node: torch.fx.Node, kind: InputKind) -> Any:
        held = self.held.get(node.name)
        if held is not None:
            if held.role.kind == "constant" or is_empty(held.tensor):
                return held.tensor.detach()
            return self._states.get(held, self.problems.missing)
        if kind == InputKind.TOKEN:
            return self.problems.missing  # orders assertions, which the import drops
        example = node.meta.get("val")
        if not isinstance(example, torch.Tensor):
            return example  # a number or None, which is part of the graph
        try:
            if kind != InputKind.USER_INPUT:
                raise TorchError(f"arguments of the kind {kind.name} are not supported")
            type = type_of(example)
            name = self._input_names.unique(node.name)
            self._inputs[node.name] = found = graph_input(name, type.shape, type.dtype)
        except GraphcError as error:
            return self.problems.add("input", node.name, error)
        return found

    def _outputs(
        self, found: Sequence[Any], specs: Sequence[OutputSpec]
    ) -> tuple[dict[str, Value], list[tuple[State, Value]]]:
        """Return the outputs by name, and the new values of changed states."""
        outputs, changes = dict[str, Value](), list[tuple[State, Value]]()
        names = iter(_output_names(self.program))
        targets = {spec.target: spec.arg.name for spec in self.program.graph_signature.input_specs}
        for value, spec in zip(found, specs, strict=True):
            if spec.kind == OutputKind.USER_OUTPUT:
                name = next(names)
                if isinstance(value, Value | torch.Tensor):
                    try:
                        outputs[name] = self.as_value(value)
                    except GraphcError as fault:
                        self.problems.add("output", name, fault)
            elif spec.kind == OutputKind.BUFFER_MUTATION:
                held = self.held[targets[spec.target]]
                if held in self._states and isinstance(value, Value | torch.Tensor):
                    changes.append((self._states[held], self.as_value(value)))
            elif spec.kind != OutputKind.TOKEN:
                kind = spec.kind.name.lower().replace("_", " ")
                error = TorchError(f"{kind} is not supported; a call must not modify its arguments")
                self.problems.add("output", str(spec.target), error)
        return outputs, changes

    def _named_states(self) -> Iterator[tuple[str, State]]:
        """Yield all names of the module's tensors, including tied ones, with their states."""
        for spec in self.program.graph_signature.input_specs:
            held = self.held.get(spec.arg.name)
            if held in self._states:
                yield str(spec.target), self._states[held]

    def _report(self) -> tuple[Reported, ...]:
        return tuple(
            Reported(
                held.weight.name,
                held.role.kind,
                held.role.reason,
                held.weight.shape,
                str(held.weight.dtype),
                self._states[held].name if held in self._states else None,
                held.role.is_trained,
            )
            for held in dict.fromkeys(self.held.values())
        )

    # --- nodes ---

    def run(self, module: torch.fx.GraphModule, environment: Environment) -> Sequence[Any]:
        """Convert nodes in order into `environment`, and return the outputs of the graph."""
        for node in module.graph.nodes:
            if node.op == "output":
                given = node.args[0]
                return list(torch.fx.map_arg(given, environment.__getitem__))
            if node.op == "get_attr":
                environment[node] = operator.attrgetter(str(node.target))(module)
            elif node.op == "call_function":
                node.meta["val"] = self._symbols.concrete(node.meta.get("val"))
                environment[node] = self._made(node, environment)
                self._symbols.bind(node.meta["val"], environment[node])
        raise TorchError("the module's graph has no outputs")

    def _made(self, node: torch.fx.Node, environment: Environment) -> Any:
        """Return the result of a node, or record a problem and return `Missing`."""
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), environment.__getitem__)
        leaves = pytree.tree_leaves((args, kwargs))
        place = Place(node.name, module_of(node))
        if any(leaf is self.problems.missing for leaf in leaves):
            return self._behind(node, place)
        if node.target is operator.getitem:
            return args[0][args[1]]
        try:
            with _scoped(node):
                return self._called(node, args, kwargs)
        except GraphcError as error:
            return self.problems.operator(operator_of(node.target), place, told(error))
        except (MemoryError, RecursionError) as error:
            return self.problems.operator(operator_of(node.target), place, str(error))

    def _behind(self, node: torch.fx.Node, place: Place) -> Missing:
        """Return `Missing` for a node with missing operands, and record whether it has no rule."""
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        if is_operator and RULES.find(operator_of(node.target)) is None:
            return self.problems.operator(operator_of(node.target), place)
        return self.problems.missing

    def _called(self, node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        inner = inner_graph(node, args)
        if inner is not None:
            return self._inlined(*inner)
        leaves = pytree.tree_leaves((args, kwargs))
        if any(isinstance(leaf, Moved) for leaf in leaves):
            moved = [leaf for leaf in leaves if isinstance(leaf, Moved)]
            if any(leaf.state.type.dtype.itemsize < 4 for leaf in moved):
                raise UnsupportedError(
                    "the norm's running statistics have 16 bits; load module.float(), and give "
                    "precision='bf16' or 'fp16' to graphc.compile, which keeps statistics wide"
                )
            raise UnsupportedError("running statistics are read after the norm that updates them")
        nothing = without_elements(node, args, kwargs)
        if nothing is not None:
            return nothing
        if not any(isinstance(leaf, Value) for leaf in leaves):
            known = folded(node, args, kwargs)
            if known is not None:
                return known
        name = operator_of(node.target)
        rule = RULES.find(name)
        if rule is None:
            return self.problems.operator(name, Place(node.name, module_of(node)))
        found = rule(TorchCall(name, _by_name(node, args, kwargs), self.as_value, node))
        self._symbols.bind(node.meta["val"], found)
        node.meta["val"] = self._symbols.concrete(node.meta["val"])
        _check(node, found)
        return found

    def _inlined(
        self, module: torch.fx.GraphModule, operands: Sequence[Any], gives_gradients: bool
    ) -> Any:
        """Return the results of a subgraph with these operands."""
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        found = self.run(module, dict(zip(inputs, operands, strict=True)))
        if gives_gradients:
            return tuple(found)
        from graphc.ops.stop_gradient import stop_gradient

        return tuple(stop_gradient(x) if isinstance(x, Value) else x for x in found)

    # --- constants ---

    def as_value(self, operand: object) -> Value:
        """Return an operand as a value; each known tensor becomes one constant of the graph."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, bool | int | float):
            dtype = "bool" if isinstance(operand, bool) else "int64"
            return full((), operand, "float32" if isinstance(operand, float) else dtype)
        if not isinstance(operand, torch.Tensor):
            raise UnsupportedError(f"expected a tensor, got {type(operand).__name__}")
        found = self._constants.get(id(operand))
        if found is None:
            type_of(operand)
            value = known_weight(operand).as_constant()
            found = self._constants[id(operand)] = (operand, value)  # keeps the id unique
        return found[1]


def module_of(node: torch.fx.Node) -> str:
    """Return the path of the module of a node; empty for the outermost module."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = str(stack[-1][0]) if stack else ""
    return path.partition("@")[0].removeprefix("L['self'].")


@contextmanager
def _scoped(node: torch.fx.Node) -> Iterator[None]:
    path = module_of(node)
    if not path:
        yield
        return
    with scope(mangled(path.replace(".", "/"))):
        yield


def _by_name(node: torch.fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments by the names of the operator's schema."""
    declared = node.target._schema.arguments
    named = {a.name: a.default_value for a in declared if a.has_default_value()}
    positional = zip((a.name for a in declared), args, strict=False)
    return {**named, **dict(positional), **kwargs}


def _check(node: torch.fx.Node, found: Any) -> None:
    """Raise `UnsupportedError` if the types of a rule's results differ from torch's."""
    expected = node.meta.get("val")
    pairs = [(expected, found)]
    if isinstance(expected, tuple | list):
        pairs = list(zip(expected, found, strict=False))
    for wanted, given in pairs:
        if not isinstance(wanted, torch.Tensor) or not isinstance(given, Value):
            continue
        type = type_of(wanted)
        if given.type != type:
            raise UnsupportedError(
                f"torch computes {type}, but the import rule computes {given.type}"
            )


def _output_names(program: ExportedProgram) -> list[str]:
    """Return a name for each output of the module, from its keys and indices, or ``output``."""
    spec = program.call_spec.out_spec
    count = spec.num_leaves
    tree = pytree.tree_unflatten(list(range(count)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    names = Names()
    return [names.take(_joined(path)) for path in paths]


def _joined(path: Sequence[Any]) -> str:
    parts = [
        str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
    ]
    named = ".".join(parts)
    return mangled(named) if named and not named[0].isdigit() else ".".join(["output", *parts])
