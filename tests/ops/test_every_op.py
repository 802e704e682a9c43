"""Checks of every op, on the rows of samples.

The checks of a row share its results: its reference, both orders of its gradient, the values that
its gradients read, its cost, and outputs that overwrite operands.
"""

import loops
import numpy as np
import pytest
from ops.samples import SAMPLES, STATE_OPS

import graphc as g
from graphc.ir.graph import Input, Value
from graphc.ir.op import REGISTRY

first_rows = {sample.op: sample for sample in reversed(SAMPLES)}
"""Op → its first row; slow tests make the longest checks of all other rows."""

STRATEGIES = ("inplace", "sharing", "packed")


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
    return inputs, feeds, as_tuple(sample.build(*inputs))


def as_tuple(each):
    return each if isinstance(each, tuple) else (each,)


def find_node(sample, outputs):
    node = outputs[0].node
    while node.op.name != sample.op:
        node = node.inputs[0].node
    return node


def test_every_op_has_a_row():
    assert {sample.op for sample in SAMPLES} | STATE_OPS == set(REGISTRY)


def strategies_of(sample):
    """Return strategies of allocation for the quick checks of a first row: they alternate."""
    return ("inplace", ("sharing", "packed")[list(first_rows).index(sample.op) % 2])


def is_first(sample):
    return first_rows[sample.op] is sample


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_an_op(sample):
    inputs, feeds, outputs = build(sample)
    node = find_node(sample, outputs)
    with loops.case("the cost counts the bytes"):
        check_cost(node)
    results = []
    if not (sample.reads and is_first(sample)):
        program = g.compile(outputs=outputs, training=True, poison=True)
        results = [list(program.step(feeds).values())]
    if sample.reads:
        with loops.case("declared reads are the least"):
            rules = node.op.gradients
            assert {name: set(rule.reads) for name, rule in rules.items()} == sample.reads
        with loops.case("every declared read is necessary"):
            check_declared_reads(sample, feeds, node)
        results += check_orders(
            sample, inputs, feeds, outputs, second=is_first(sample),
            kernels="native" if is_first(sample) else "numpy",
        )  # fmt: skip
    for found in results:
        with loops.case("the forward result equals the reference"):
            check_forward(sample, feeds, outputs, found)
    if is_first(sample):
        check_overwriting(sample, strategies_of(sample))


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_an_op_at_length(sample):
    check_overwriting(sample, STRATEGIES)
    if sample.reads and not is_first(sample):
        check_orders(sample, *build(sample), second=True, kernels="native")


def check_cost(node):
    cost = node.op.cost(node)
    assert cost.flops >= 0
    assert cost.bytes_read == sum(value.type.bytes for value in node.inputs)
    assert cost.bytes_written == sum(value.type.bytes for value in node.outputs)


def check_forward(sample, feeds, outputs, results):
    expected = as_tuple(sample.reference(*feeds.values()))
    assert len(expected) == len(results)
    for result, wanted, value in zip(results, expected, outputs, strict=True):
        assert result.dtype == value.type.dtype.numpy
        assert result.shape == value.shape == np.shape(wanted)
        np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-13)


def check_overwriting(sample, strategies):
    """Compare the bits of an op that may overwrite its operands with those of an op that cannot."""
    inputs, feeds, _ = build(sample)
    copies = [g.mul(x, 1.0) if x.type.dtype.kind == "float" else x for x in inputs]
    shifted = [
        g.add(x, g.full((), 0.25, x.type.dtype)) if x is not y else x
        for x, y in zip(copies, inputs, strict=True)
    ]
    outputs = as_tuple(sample.build(*shifted))

    def results(strategy):
        program = g.compile(outputs=outputs, allocate=strategy, training=True, poison=True)
        return program.step(feeds)

    expected = results("none")
    for strategy in strategies:
        with loops.case(f"overwriting changes nothing, {strategy}"):
            found = results(strategy)
            for name, array in expected.items():
                np.testing.assert_array_equal(array, found[name], strict=True)


def check_declared_reads(sample, given, node):
    """Change any one value that a gradient declares to read: the gradient changes.

    The values are random, or those of the network if random ones give no gradient.
    """
    known = {**node.named_inputs(), **node.named_outputs()}
    declared: dict[str, list[Value]] = {}
    models: dict[str, Value] = {}
    results: dict[str, Value] = {}
    for target, rule in node.op.gradients.items():
        if not rule.reads:
            continue
        reads: dict[str, Value | tuple[Value, ...]] = {}
        for name in rule.reads:
            model = known[name] if name in known else known[name[1:]]
            label = f"{target}_{name}"
            reads[name] = (
                tuple(g.input(f"{label}{i}", v.shape, v.type.dtype) for i, v in enumerate(model))
                if isinstance(model, tuple)
                else g.input(label, model.shape, model.type.dtype)
            )
            if name in known:
                each = zip(*map(as_tuple, (reads[name], model)), strict=True)
                models |= {x.name: value for x, value in each}
        made = rule.method(node.op, node, **reads)
        made = as_tuple(made)
        if not made:
            continue  # a variadic input that this sample leaves out
        if sample.joint:
            made = made[0].producer.outputs
        results |= {f"{target}_{i}": value for i, value in enumerate(made)}
        declared[target] = [x for read in reads.values() for x in as_tuple(read)]
    if not declared:
        return
    program = g.compile(outputs=results, training=True, kernels="numpy")
    inputs = [x for each in declared.values() for x in each]
    assert set(program.graph.inputs) == set(inputs)
    rng = np.random.default_rng(3)
    feeds = {x.name: draw(rng, sample, x.shape, x.type.dtype.name) for x in inputs}
    before = {name: array.copy() for name, array in program.step(feeds).items()}
    if any(np.isnan(array).any() for array in before.values() if array.dtype.kind == "f"):
        forward = g.compile(outputs=models, training=True, kernels="numpy")
        feeds |= forward.step({x.name: given[x.name] for x in forward.graph.inputs})
        before = {name: array.copy() for name, array in program.step(feeds).items()}
    for target, read in declared.items():
        for x in read:
            changed = draw(np.random.default_rng(11), sample, x.shape, x.type.dtype.name)
            assert not np.array_equal(changed, feeds[x.name])
            after = program.step({**feeds, x.name: changed})
            differ = {name for name in after if not same(before[name], after[name])}
            assert differ, x
            assert {name.rpartition("_")[0] for name in differ} == {target}


def same(a, b):
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


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
    """Compare the symbolic gradient of a loss with central differences in float64."""
    check_gradients({"loss": loss}, wrt, feeds, (), step, tolerance)


def check_gradients(
    losses, wrt: list[Input], feeds, outputs=(), step=4e-6, tolerance=2e-8, kernels="native"
):
    """Compare gradients of several losses, which share each step, with central differences.

    `kernels` compute the gradients, and NumPy's the differences. Returns these outputs of the
    network by both.
    """
    gradients = {
        (name, x.name): gradient
        for name, loss in losses.items()
        for x, gradient in zip(wrt, g.gradient(loss, wrt), strict=True)
    }
    named = {f"{name}_{x}": gradient for (name, x), gradient in gradients.items()}
    results = {f"output{i}": value for i, value in enumerate(outputs)}
    program = g.compile(
        outputs={**losses, **results, **named}, kernels=kernels, poison=True, reorder=False
    )
    feeds = {**weight_feeds(program.graph), **feeds}
    found = program.step({x.name: feeds[x.name] for x in program.graph.inputs})
    forward = g.compile(
        outputs={**losses, **results}, kernels="numpy", training=True, poison=True, reorder=False
    )
    feeds = {x.name: feeds[x.name] for x in forward.graph.inputs}
    at_rest = forward.step(feeds)

    def losses_at(name, array):
        moved = forward.step({**feeds, name: array})
        return np.array([moved[loss] for loss in losses], np.float64)

    for x in wrt:
        numeric = np.zeros((*x.shape, len(losses)))
        if x.name in feeds:
            for index in np.ndindex(*x.shape):
                shift = np.zeros_like(feeds[x.name])
                shift[index] = step
                ends = [losses_at(x.name, feeds[x.name] + sign * shift) for sign in (1, -1)]
                numeric[index] = (ends[0] - ends[1]) / (2 * step)
        for i, name in enumerate(losses):
            wanted = numeric[..., i]
            scale = max(1.0, np.abs(wanted).max())
            with loops.case(f"the gradient of {name} in {x.name}"):
                np.testing.assert_allclose(
                    found[f"{name}_{x.name}"], wanted, atol=tolerance * scale, rtol=0
                )
    return [[each[name] for name in results] for each in (found, at_rest)]


def flowing(sample, inputs, outputs):
    """Outputs that pass a gradient back, and inputs that get one."""
    op = find_node(sample, outputs).op
    read = {name for rule in op.gradients.values() for name in rule.reads}
    through = [v for i, v in enumerate(outputs) if f"d{op.output_name(i)}" in read]
    wrt = [x for i, x in enumerate(inputs) if op.input_name(i) in op.gradients]
    return through, [x for x in wrt if x.type.dtype.kind == "float"]


def check_orders(sample, inputs, feeds, outputs, *, second, kernels):
    """Check the gradient of a sample and, if `second` and it has one, the gradient of that.

    `kernels` compute the gradients. Returns its outputs by these and by NumPy's.
    """
    coarse = sample.dtypes[:1] == ("float32",)
    through, wrt = flowing(sample, inputs, outputs)
    losses = {"order1": weighted_sum(through, "weight")}
    if second and sample.second_order:
        again = g.gradient(losses["order1"], wrt)
        losses["order2"] = weighted_sum(again, "again")
    settings = {"step": 1e-2, "tolerance": 1e-4} if coarse else {}
    return check_gradients(losses, wrt, feeds, outputs, kernels=kernels, **settings)
