"""Properties of every op at once, on the rows of samples."""

import numpy as np
import pytest
from ops.samples import SAMPLES, STATE_OPS

import graphc as g
from graphc.ir.graph import Input, Value
from graphc.ir.op import REGISTRY

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
differentiable = pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if s.reads], ids=lambda sample: sample.name
)

first_rows = {sample.op: sample for sample in reversed(SAMPLES)}
"""Op → its first row; tests of all others that take long are run at night."""


def quick_if_first(samples):
    return [
        pytest.param(s, id=s.name, marks=() if first_rows[s.op] is s else pytest.mark.slow)
        for s in samples
    ]


def draw(rng, sample, shape, dtype):
    if dtype == "bool":
        return rng.random(shape) > 0.5
    if dtype.startswith(("int", "uint")):
        return rng.integers(0, sample.int_limit, shape).astype(dtype)
    return rng.uniform(*sample.domain, shape).astype(dtype)


def build(sample):
    """Inputs, their feeds, and the tuple of outputs."""
    rng = np.random.default_rng(7)
    inputs = [g.input(f"input{i}", shape, sample.dtype(i)) for i, shape in enumerate(sample.shapes)]
    feeds = {x.name: draw(rng, sample, x.shape, x.type.dtype.name) for x in inputs}
    outputs = sample.build(*inputs)
    return inputs, feeds, outputs if isinstance(outputs, tuple) else (outputs,)


def find_node(sample, outputs):
    node = outputs[0].node
    while node.op.name != sample.op:
        node = node.inputs[0].node
    return node


def test_every_op_has_a_row():
    assert {sample.op for sample in SAMPLES} | STATE_OPS == set(REGISTRY)


@every_sample
def test_forward_equals_the_reference(sample):
    _, feeds, outputs = build(sample)
    program = g.compile(outputs=outputs, training=True, poison=True)
    results = list(program.step(feeds).values())
    expected = sample.reference(*feeds.values())
    expected = expected if isinstance(expected, tuple) else (expected,)
    assert len(expected) == len(results)
    for result, wanted, value in zip(results, expected, outputs, strict=True):
        assert result.dtype == value.type.dtype.numpy
        assert result.shape == value.shape == np.shape(wanted)
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sample", quick_if_first(SAMPLES))
def test_overwriting_changes_nothing(sample):
    """An op run over its operands' bytes gives the same bits as on bytes of its own."""
    inputs, feeds, _ = build(sample)
    copies = [g.mul(x, 1.0) if x.type.dtype.kind == "float" else x for x in inputs]
    shifted = [
        g.add(x, g.full((), 0.25, x.type.dtype)) if x is not y else x
        for x, y in zip(copies, inputs, strict=True)
    ]
    outputs = sample.build(*shifted)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    results = [
        g.compile(outputs=outputs, allocate=strategy, training=True, poison=True).step(feeds)
        for strategy in ("none", "inplace", "sharing", "packed")
    ]
    for other in results[1:]:
        for name, array in results[0].items():
            np.testing.assert_array_equal(array, other[name], strict=True)


@every_sample
def test_cost_counts_the_bytes(sample):
    _, _, outputs = build(sample)
    node = find_node(sample, outputs)
    cost = node.op.cost(node)
    assert cost.flops >= 0
    assert cost.bytes_read == sum(value.type.bytes for value in node.inputs)
    assert cost.bytes_written == sum(value.type.bytes for value in node.outputs)


@differentiable
def test_declared_reads_are_the_least(sample):
    _, _, outputs = build(sample)
    rules = find_node(sample, outputs).op.gradients
    assert {name: set(rule.reads) for name, rule in rules.items()} == sample.reads


@differentiable
def test_every_declared_read_is_necessary(sample):
    """Changing any one value that a gradient declares to read changes the gradient."""
    rng = np.random.default_rng(3)
    _, _, outputs = build(sample)
    node = find_node(sample, outputs)
    known = {**node.named_inputs(), **node.named_outputs()}
    for rule in node.op.gradients.values():
        if not rule.reads:
            continue
        reads: dict[str, Value | tuple[Value, ...]] = {}
        for name in rule.reads:
            model = known[name] if name in known else known[name[1:]]
            reads[name] = (
                tuple(g.input(f"{name}{i}", v.shape, v.type.dtype) for i, v in enumerate(model))
                if isinstance(model, tuple)
                else g.input(name, model.shape, model.type.dtype)
            )
        result = rule.method(node.op, node, **reads)
        results = result if isinstance(result, tuple) else (result,)
        if not results:
            continue  # a variadic input that this sample leaves out
        if sample.joint:
            results = results[0].producer.outputs
        program = g.compile(outputs=results, training=True)
        declared = [v for r in reads.values() for v in (r if isinstance(r, tuple) else (r,))]
        assert set(program.graph.inputs) == set(declared)
        feeds = {x.name: draw(rng, sample, x.shape, x.type.dtype.name) for x in declared}
        before = [a.copy() for a in program.step(feeds).values()]
        for x in declared:
            changed = draw(np.random.default_rng(11), sample, x.shape, x.type.dtype.name)
            assert not np.array_equal(changed, feeds[x.name])
            after = list(program.step({**feeds, x.name: changed}).values())
            assert any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)), x


def weighted_sum(values, tag):
    """A scalar that depends on every element with a different weight."""
    total = None
    for i, value in enumerate(values):
        weights = g.input(f"{tag}{i}", value.shape, value.type.dtype)
        term = g.sum(value * weights)
        total = term if total is None else total + term
    return total


def weight_feeds(graph):
    rng = np.random.default_rng(5)
    return {
        x.name: rng.uniform(0.5, 1.5, x.shape).astype(x.type.dtype.numpy)
        for x in graph.inputs
        if not x.name.startswith("input")
    }


def check_gradient(loss, wrt: list[Input], feeds, step=4e-6, tolerance=2e-8):
    """Central differences in float64 against the symbolic gradient."""
    gradients = g.gradient(loss, wrt)
    named = {x.name: gradient for x, gradient in zip(wrt, gradients, strict=True)}
    program = g.compile(loss, outputs=named, poison=True, reorder=False)
    feeds = {**weight_feeds(program.graph), **feeds}
    feeds = {x.name: feeds[x.name] for x in program.graph.inputs}
    found = program.step(feeds)
    loss_only = g.compile(loss, training=True, reorder=False)
    names = {x.name for x in loss_only.graph.inputs}

    def loss_at(name, array):
        moved = {key: value for key, value in feeds.items() if key in names} | {name: array}
        return float(loss_only.step(moved)["loss"])

    for x in wrt:
        numeric = np.zeros(x.shape)
        if x.name in names:
            for index in np.ndindex(*x.shape):
                shift = np.zeros_like(feeds[x.name])
                shift[index] = step
                ends = (
                    loss_at(x.name, feeds[x.name] + shift),
                    loss_at(x.name, feeds[x.name] - shift),
                )
                numeric[index] = (ends[0] - ends[1]) / (2 * step)
        scale = max(1.0, np.abs(numeric).max())
        np.testing.assert_allclose(found[x.name], numeric, atol=tolerance * scale, rtol=0)


def flowing(sample, inputs, outputs):
    """Outputs that pass a gradient back, and inputs that get one."""
    op = find_node(sample, outputs).op
    read = {name for rule in op.gradients.values() for name in rule.reads}
    through = [v for i, v in enumerate(outputs) if f"d{op.output_name(i)}" in read]
    wrt = [x for i, x in enumerate(inputs) if op.input_name(i) in op.gradients]
    return through, [x for x in wrt if x.type.dtype.kind == "float"]


@differentiable
def test_gradient_first_order(sample):
    inputs, feeds, outputs = build(sample)
    coarse = sample.dtypes[:1] == ("float32",)
    through, wrt = flowing(sample, inputs, outputs)
    check_gradient(
        weighted_sum(through, "weight"),
        wrt,
        feeds,
        **({"step": 1e-2, "tolerance": 1e-4} if coarse else {}),
    )


@pytest.mark.parametrize(
    "sample", quick_if_first([s for s in SAMPLES if s.reads and s.second_order])
)
def test_gradient_second_order(sample):
    inputs, feeds, outputs = build(sample)
    through, wrt = flowing(sample, inputs, outputs)
    first = weighted_sum(through, "weight")
    check_gradient(weighted_sum(g.gradient(first, wrt), "again"), wrt, feeds)
