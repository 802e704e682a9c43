"""Import of ONNX models, node by node; known and computed tensors are tracked separately.

A node with known operands is folded. Other nodes are translated by a rule or replaced by their
function body. Unsupported features are collected and raised as one error at the end.
"""

from __future__ import annotations

import contextlib
import os
from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

import onnx

from graphc.errors import GraphcError, GraphError, OnnxError
from graphc.importing.calls import UnsupportedError
from graphc.importing.names import Names
from graphc.importing.network import InitialStates, Reported
from graphc.importing.problems import Missing, Place, Problems
from graphc.importing.roles import Role, initial
from graphc.importing.weights import Array, Weight, known
from graphc.ir.builder import input as graph_input
from graphc.ir.builder import scope
from graphc.ir.graph import Input, State, Value
from graphc.ir.types import TensorType
from graphc.onnx.calls import RULES, OnnxCall, Operand, UndeterminedError
from graphc.onnx.extents import bound_types, known_arrays
from graphc.onnx.fold import folded, is_folded
from graphc.onnx.functions import body_of, has_body
from graphc.onnx.model import STANDARD, Model, parsed, read_model
from graphc.onnx.network import Network
from graphc.onnx.recorded_network import recorded_network
from graphc.onnx.roles import roles
from graphc.onnx.scopes import scope_of

Environment = MutableMapping[str, Operand | Missing]

DEEPEST = 64
"""Maximum nesting depth of subgraphs and function bodies."""

REPEATED = ("Loop", "Scan")
"""Operators whose subgraph is always imported; of If, only one branch is."""


def load(
    path: str | os.PathLike[str] | onnx.ModelProto,
    dims: Mapping[str, int | Sequence[int]],
    trainable: bool | str | Collection[str] | None,
    weights: bool,
    given: Mapping[str, Any],
) -> Network:
    """Implement `graphc.onnx.load`."""
    try:
        proto, folder = parsed(path)
        found = None if dims or given else recorded_network(proto, folder, trainable, weights)
        if found is not None:
            return found
        model = read_model(proto, folder)
        return Importer(model, roles(model, trainable), weights).network(dims, given)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        told = f"the model is malformed: {type(error).__name__}: {error}"
        raise OnnxError(told) from error  # such as names that are not valid text


class Importer:
    """The state of the import of one model."""

    def __init__(self, model: Model, roles: Mapping[str, Role], weights: bool) -> None:
        self.model, self.roles, self.reads_weights = model, roles, weights
        self.problems = Problems()
        self._state_names = Names()
        self._states: dict[str, State] = {}
        self._initial: dict[str, Weight] = {}
        self._constants: dict[Weight, Value] = {}
        self.opset = max(model.opset, 1)
        self._depth = 0
        self._undetermined: set[str] = set()

    # --- network ---

    def network(
        self, dims: Mapping[str, int | Sequence[int]], numbers: Mapping[str, Any]
    ) -> Network:
        given = known_arrays(self.model, numbers)
        inputs, names = self._inputs(dims, given)
        environment: Environment = dict(inputs)
        for value in self.model.inputs:
            environment.setdefault(value.name, self.problems.missing)
        for name, array in given.items():
            environment[name] = known(name, array)
        for name, weight in self.model.weights.items():
            environment[name] = self._tensor(name, weight)
        self.run(self.model.graph.node, environment)
        outputs = {}
        for output in self.model.graph.output:
            found = self._output(output.name, environment)
            if found is not None:
                outputs[output.name] = found
        self._check()
        names |= {name: state.name for name, state in self._states.items()}
        return Network(
            inputs, outputs, InitialStates(self._initial), self._report(), names, self.model.opset
        )

    def _inputs(
        self, dims: Mapping[str, int | Sequence[int]], given: Mapping[str, Array]
    ) -> tuple[dict[str, Input], dict[str, str]]:
        types = bound_types(self.model, dims, given)
        inputs, taken = {}, Names()
        for name, type in types.items():
            if name in given:
                continue
            if isinstance(type, TensorType):
                inputs[name] = graph_input(taken.unique(name), type.shape, type.dtype)
            else:
                self.problems.input(type)
        return inputs, {name: source.name for name, source in inputs.items()}

    def _tensor(self, name: str, weight: Weight) -> Operand | Missing:
        """Return a tensor of the file as a state, or as a tensor known at import."""
        role = self.roles[name]
        if role.kind == "constant" or not weight.elements:
            return weight
        try:
            type = weight.type
        except GraphcError as error:
            return self.problems.add("initializer", name, error)
        self._states[name] = found = State(
            type,
            name=self._state_names.unique(name),
            initial=initial(type, _fill(role)),
            role="statistic" if role.kind == "statistic" else "parameter",
            trainable=role.is_trained,
        )
        if self.reads_weights:
            self._initial[found.name] = weight
        return found

    def _output(self, name: str, environment: Environment) -> Value | None:
        found = environment.get(name)
        if found is None:
            self.problems.add("output", name, OnnxError("no node computes it"))
        if found is None or isinstance(found, Missing):
            return None
        try:
            return self.as_value(found)
        except GraphcError as error:
            self.problems.add("output", name, error)
            return None

    def _check(self) -> None:
        """Raise one `OnnxError` with all unsupported features, if there are any."""
        named = ", ".join(sorted(self._undetermined))
        cure = f"shapes depend on the values of inputs; pass them as known={{...}}: {named}"
        message = self.problems.message(*([cure] if named else []))
        if message is not None:
            raise OnnxError(message, self._undetermined)

    def _report(self) -> tuple[Reported, ...]:
        return tuple(
            Reported(
                name,
                role.kind,
                role.reason,
                weight.shape,
                str(weight.dtype),
                self._states[name].name if name in self._states else None,
                role.is_trained,
            )
            for (name, role), weight in zip(
                self.roles.items(), self.model.weights.values(), strict=True
            )
        )

    # --- nodes ---

    def run(self, nodes: Iterable[onnx.NodeProto], environment: Environment) -> None:
        """Import nodes in order, and add their outputs by name to `environment`."""
        made: set[str] = set()
        for node in nodes:
            if twice := made & set(node.output):
                rule = (
                    f"an earlier node already computes {min(twice)!r}; each tensor needs exactly "
                    "one node"
                )
                self.problems.add(node.op_type, node.name, GraphError(rule))
            found = self._outputs(node, environment)
            for name, output in zip(node.output, found, strict=False):
                if name and output is not None:
                    environment[name] = output
                    made.add(name)

    def _outputs(
        self, node: onnx.NodeProto, environment: Environment
    ) -> Sequence[Operand | Missing | None]:
        operands: list[Operand | None] = []
        for name in node.input:
            operand = environment.get(name) if name else None
            if isinstance(operand, Missing):
                self._pass_over(node)
                return [operand] * len(node.output)
            if name and operand is None:
                error = OnnxError(f"it reads {name!r}, but no earlier node computes that")
                return [self.problems.add(node.op_type, node.name, error)] * len(node.output)
            operands.append(operand)
        try:
            with _scoped(node, self._depth):
                return self._made(node, operands, environment)
        except UndeterminedError as error:
            self._undetermined |= error.undetermined
            missing = self.problems.add(node.op_type, node.name, error)
        except GraphcError as error:
            missing = self.problems.add(node.op_type, node.name, error)
        except (MemoryError, RecursionError) as error:
            told = OnnxError(str(error) or "it does not fit in memory")
            missing = self.problems.add(node.op_type, node.name, told)
        except Exception as error:  # a malformed node can fail anywhere
            told = OnnxError(f"it is malformed: {type(error).__name__}: {error}")
            missing = self.problems.add(node.op_type, node.name, told)
        return [missing] * len(node.output)

    def _made(
        self,
        node: onnx.NodeProto,
        operands: list[Operand | None],
        environment: Environment,
    ) -> Sequence[Operand | Missing | None]:
        weights = folded(node, operands, self.opset)
        if weights is not None:
            return weights
        domain = "" if node.domain in STANDARD else node.domain
        rule = RULES.find(node.op_type, domain)
        if rule is not None:
            result = rule(self._call(node, operands, environment))
            if result is not None:
                return [result] if isinstance(result, Value | Weight) else list(result)
        return self._expanded(node, operands)

    def _call(
        self, node: onnx.NodeProto, operands: list[Operand | None], environment: Environment
    ) -> OnnxCall:
        subgraph = partial(self.subgraph, environment)
        arguments = dict(enumerate(operands))
        return OnnxCall(node.op_type, arguments, self.as_value, node, self.opset, subgraph)

    def _expanded(
        self, node: onnx.NodeProto, operands: list[Operand | None]
    ) -> Sequence[Operand | Missing | None]:
        """Import the function body of an operator in place of the node."""
        body = body_of(node, [None if o is None else o.type for o in operands], self.opset)
        if body is None:
            return [self._without_rule(node)] * len(node.output)
        around, self.opset = self.opset, body.opset
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                raise UnsupportedError("functions are nested too deeply")
            formal = [name for name, o in zip(body.inputs, operands, strict=False) if o is not None]
            inner: Environment = dict(
                zip(formal, (o for o in operands if o is not None), strict=True)
            )
            self.run(body.nodes, inner)
            return [inner.get(name) for name in body.outputs]
        finally:
            self._depth -= 1
            self.opset = around

    def _without_rule(self, node: onnx.NodeProto) -> Missing:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return self.problems.operator(name, Place(node.name or next(iter(node.output), "")))

    def _pass_over(self, node: onnx.NodeProto) -> None:
        """Record unsupported operators of a node that is skipped because an operand is missing."""
        domain = "" if node.domain in STANDARD else node.domain
        if RULES.find(node.op_type, domain) is not None:
            for attribute in node.attribute if node.op_type in REPEATED else ():
                for inner in attribute.g.node:
                    self._pass_over(inner)
        elif not is_folded(node) and not has_body(node, self.opset):
            self._without_rule(node)

    def subgraph(
        self, environment: Environment, graph: onnx.GraphProto, given: Mapping[str, Operand]
    ) -> list[Operand]:
        """Import a subgraph and return its outputs.

        It can read the tensors of `environment`, and those in `given` by name.
        """
        inner: Environment = ChainMap({}, environment)
        inner.update(given)
        from graphc.onnx.weights import stored

        inner.update((t.name, stored(t, ".")) for t in graph.initializer)
        self._depth += 1
        try:
            if self._depth > DEEPEST:
                raise UnsupportedError("bodies are nested too deeply")
            self.run(graph.node, inner)
        finally:
            self._depth -= 1
        found = []
        for output in graph.output:
            operand = inner.get(output.name)
            if operand is None or isinstance(operand, Missing):
                raise UnsupportedError(f"its body does not return {output.name!r}")
            found.append(operand)
        return found

    # --- constants ---

    def as_value(self, operand: Operand) -> Value:
        """Return an operand as a value; a known tensor becomes one shared constant."""
        if isinstance(operand, Value):
            return operand
        found = self._constants.get(operand)
        if found is None:
            found = self._constants[operand] = operand.as_constant()
        return found


@contextlib.contextmanager
def _scoped(node: onnx.NodeProto, depth: int) -> Iterator[None]:
    name = "" if depth else scope_of(node.name)
    if not name:
        yield
        return
    with scope(name):
        yield


def _fill(role: Role) -> float:
    """Return the fill of a vector if weights are not read: 1 for scale or variance, else 0."""
    return float(role.reason.endswith(("(scale)", "(variance)")))
