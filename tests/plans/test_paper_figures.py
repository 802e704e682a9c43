"""Golden printouts of Fig. 1, 2 and 3 of "Training Deep Nets with Sublinear Memory Cost"."""

import graphc as g
from graphc import gradient
from graphc.ir import builder
from graphc.ir.text import format_node


def fig1_plan():
    """Two fully connected layers, sigmoid between, softmax; weights are fixed, as the figure omits
    them."""
    x, labels = g.input("input", (8, 16)), g.input("label", (8,), "int32")
    h = g.sigmoid(g.linear(x, 16, bias=False, trainable=False, name="fullc1"))
    logits = g.linear(h, 16, bias=False, trainable=False, name="fullc2")
    loss = g.softmax_cross_entropy(logits, labels)
    (input_gradient,) = g.gradient(loss, [x])
    return g.plan(outputs={"input_gradient": input_gradient}, allocate="sharing", kernels="numpy")


def test_fig1_allocation(golden):
    plan = fig1_plan()
    at = {node.op.name: node for node in plan.graph.nodes}
    fullc1, fullc2, fullc2_backward, fullc1_backward = (
        node.output for node in plan.graph.nodes if node.op.name == "matmul"
    )
    sigmoid, sigmoid_backward = at["sigmoid"].output, at["sigmoid_gradient"].output
    softmax_backward = at["softmax_cross_entropy_gradient"].output

    assert plan.placements[sigmoid].how == "over"
    assert plan.placements[sigmoid].over is fullc1
    assert plan.placements[sigmoid_backward].over is sigmoid
    assert plan.address(sigmoid_backward) == plan.address(fullc1)

    assert plan.placements[fullc1_backward].how == "reuse"
    assert plan.address(fullc1_backward) == plan.address(softmax_backward)
    assert plan.address(softmax_backward) == plan.address(fullc2)
    assert plan.address(fullc2_backward) not in (plan.address(fullc1), plan.address(fullc2))
    golden("fig1.txt", plan.text())


def test_fig2_counters_and_tags(golden):
    """B has two readers, so C may not overwrite it; its tag is recycled when F has read it."""
    a = g.parameter("A", (4, 64))  # the figure's input keeps its place
    b = g.sigmoid(a)
    c = g.sigmoid(b)
    f = g.sum(b, 1)
    e = g.sum(c, 1)
    out = g.mul(e, f)
    letters = dict(zip((a, b, c, f, e, out), "ABCFEG", strict=True))
    plan = g.plan(outputs={"G": out}, allocate="sharing", kernels="numpy")
    graph = plan.graph
    copied_out = list(graph.outputs.values())
    counters = {v: len(graph.uses[v]) + copied_out.count(v) for v in graph.values}
    tags = {plan.address(a): 1}
    lines = ["initial counters: " + " ".join(f"{letters[v]}={counters[v]}" for v in graph.values)]
    for node in graph.nodes:
        before = {value: counters[value] for value in node.inputs}
        for value in node.inputs:
            counters[value] -= 1
        place = plan.placements[node.output]
        tag = tags.setdefault(plan.address(node.output), len(tags) + 1)
        reads = ", ".join(f"{letters[v]} counter {n}" for v, n in before.items())
        recycled = [letters[v] for v in node.inputs if counters[v] == 0 and v is not place.over]
        how = f"over {letters[place.over]}" if place.over is not None else place.how
        lines.append(
            f"{letters[node.output]} = {node.op.name}({reads}): {how}, tag {tag}"
            + (f"; recycles {', '.join(recycled)}" if recycled else "")
        )
    assert [plan.placements[v].how for v in (b, c, f, e)] == ["new", "new", "new", "reuse"]
    assert plan.address(e) == plan.address(b)
    assert plan.placements[out].over is e
    golden("fig2.txt", "\n".join(lines) + "\n")


def chain(counts):
    """A chain of layers with these mirror counts, then a loss."""
    value = g.input("input", (2, 8))
    for number, count in enumerate(counts):
        with g.scope(f"layer{number}"), g.mirror(count):
            value = g.sigmoid(g.linear(value, 8, bias=False))
    return g.mean(value)


def order_of(loss):
    weights = builder.trace({"loss": loss}).states
    gradients = gradient(loss, weights, mirror=lambda node: node.mirror)
    outputs = {"loss": loss, **{f"d{w.name}": d for w, d in zip(weights, gradients, strict=True)}}
    graph = builder.trace(outputs)
    return "\n".join(format_node(graph, node) for node in graph.nodes) + "\n"


def test_fig3_order_of_forward_mirror_and_backward_nodes(golden):
    """Segments of two layers: a copy stands right before the first gradient that reads it."""
    golden("fig3.txt", order_of(chain([1, 1, 0, 1, 1, 0])))


def test_fig3_with_counts_above_one(golden):
    """Two levels (Sec. 4.4): second copies read first copies of the checkpoint inside a segment."""
    golden("fig3-recursive.txt", order_of(chain([2, 1, 2, 0])))
