"""The cost model: measured seconds, the scaled roofline elsewhere, and what recomputation adds."""

from dataclasses import replace

import pytest

import graphc as g
from graphc.devices.device import CPU, find_device
from graphc.devices.links import host_link
from graphc.errors import OptionError
from graphc.planner.host_link import HostLink
from graphc.plans.cost_model import CostModel, recomputation, seconds
from graphc.plans.costs import MeasuredCosts, Measurement, node_key

H200 = find_device("h200")


def tanh(rows):
    return g.tanh(g.input("x", (rows, 4))).node


def work(node):
    cost = node.op.cost(node)
    return cost.flops, cost.bytes_read + cost.bytes_written


def roofline(node, device):
    flops, moved = work(node)
    return max(flops / device.flops_per_second, moved / device.bytes_per_second)


def measured(*entries):
    """Costs from (node, seconds) pairs."""
    return MeasuredCosts(
        {"name": "cpu"},
        tuple(Measurement(node_key(n), n.op.name, s, 1, *work(n)) for n, s in entries),
    )


def test_a_measured_link_replaces_that_of_the_device():
    link = HostLink(3e9, 4e9, 1e-6, both_ways=False)
    only = MeasuredCosts({"name": "a GPU"}, (), link)
    assert CostModel(H200).host_link == CostModel(H200, measured()).host_link == host_link(H200)
    assert CostModel(H200, only).host_link == link
    assert str(CostModel(H200, only)) == "roofline of h200, host link measured"
    node = tanh(512)
    assert CostModel(H200, only).seconds(node) == CostModel(H200).seconds(node)


@pytest.mark.parametrize("device", [CPU, H200])
def test_without_measurements_it_is_the_roofline(device):
    product = g.matmul(g.input("a", (512, 512)), g.input("b", (512, 512))).node
    for node in (product, tanh(100)):
        assert CostModel(device).seconds(node) == seconds(node, device) == roofline(node, device)
    flops, moved = 2 * 512**3, 3 * 4 * 512**2
    assert CostModel().seconds(product) == max(flops / 1e11, moved / 2e10)


def test_products_take_the_rate_of_tensor_cores():
    """Of 16-bit operands, and of float32 ones where those may be rounded."""
    a, b = (g.input(name, (2048, 2048)) for name in "ab")
    loss = g.mean(g.matmul(a, b))
    for precision, rate in (("fp32", 67e12), ("tf32", 494e12), ("bf16", 989e12)):
        plan = g.plan(outputs=[loss], device="h200", precision=precision)
        (product,) = (n for n in plan.graph.nodes if n.op.name == "matmul")
        assert CostModel.of(plan).seconds(product) == 2 * 2048**3 / rate
        assert plan.settings.get("costs") is None


@pytest.mark.parametrize(("rows", "lookups", "read"), [(50_000, 24, 24), (8, 24, 8)])
def test_a_lookup_is_charged_for_the_rows_it_reads(rows, lookups, read):
    """Each row once, so no more than there are: a table of 50,000 rows costs what 24 of them do."""
    table = g.parameter("table", (rows, 16))
    numbers = g.input("numbers", (lookups // 4, 4), "int32")
    cost = g.gather(table, numbers).node.op.cost(g.gather(table, numbers).node)
    assert cost.bytes_read == 4 * 16 * read + 4 * lookups
    assert (cost.flops, cost.bytes_written) == (0, 4 * 16 * lookups)


@pytest.mark.parametrize(("rows", "lookups", "touched"), [(50_000, 24, 24), (8, 24, 8)])
def test_adding_rows_is_charged_for_the_rows_it_touches(rows, lookups, touched):
    """The first gradient of a table fills it with zeros; one that goes on from it adds to rows."""
    table = g.parameter("table", (rows, 16))
    loss = sum(
        g.mean(g.gather(table, g.input(f"numbers{part}", (lookups,), "int32"))) for part in range(2)
    )
    nodes = g.plan(loss, optimizer=g.optim.SGD()).graph.nodes
    first, second = (node for node in nodes if node.op.name == "gather_gradient")
    row = 4 * 16
    for node, read, written in (
        (first, row * lookups + 4 * lookups, row * rows),
        (second, row * lookups + 4 * lookups + row * touched, row * touched),
    ):
        cost = node.op.cost(node)
        assert (cost.flops, cost.bytes_read, cost.bytes_written) == (16 * lookups, read, written)


def test_a_measured_key_has_its_seconds_on_every_roofline():
    costs = measured((tanh(8), 0.25))
    for device in (CPU, H200):
        assert CostModel(device, costs).seconds(tanh(8)) == 0.25


@pytest.mark.parametrize("device", [CPU, H200])
def test_other_nodes_scale_with_the_median_of_their_op_or_of_all(device):
    """tanh took 2, 3 and 10 times its roofline, exp 5 and 7 times; a view took nothing."""
    ratios = {8: 2, 16: 10, 24: 3}
    entries = [(tanh(rows), ratio * roofline(tanh(rows), device)) for rows, ratio in ratios.items()]
    for rows, ratio in ((8, 5), (16, 7)):
        node = g.exp(g.input("x", (rows, 4))).node
        entries.append((node, ratio * roofline(node, device)))
    view = g.reshape(g.input("x", (8, 4)), (32,)).node
    model = CostModel(device, measured(*entries, (view, 0.0)))

    def scale(node):
        return model.seconds(node) / roofline(node, device)

    assert scale(tanh(1000)) == pytest.approx(3)
    assert scale(g.exp(g.input("x", (1000, 4))).node) == pytest.approx(6)
    assert scale(g.sqrt(g.input("x", (1000, 4))).node) == pytest.approx(5)
    assert scale(g.reshape(g.input("x", (9, 4)), (36,)).node) == 0


def test_no_measurements_at_all_leave_the_roofline():
    assert CostModel(CPU, measured()).seconds(tanh(8)) == roofline(tanh(8), CPU)
    views_only = measured((g.reshape(g.input("x", (8, 4)), (32,)).node, 0.0))
    assert CostModel(CPU, views_only).seconds(tanh(8)) == roofline(tanh(8), CPU)


def chain(**options):
    h = g.input("x", (64, 32))
    for number in range(6):
        with g.scope(f"layer{number}"), g.mirror(1):
            h = g.tanh(g.linear(h, 32))
    return g.plan(g.mean(h), optimizer=g.optim.SGD(), recompute="mirror", **options)


def keyed(plan):
    """One second for every key of a plan."""
    nodes = {node_key(node): node for node in plan.graph.nodes}
    return measured(*((node, 1.0) for node in nodes.values()))


def test_extra_time_follows_the_measured_seconds_and_extra_flops_do_not():
    plan = chain()
    nodes = plan.graph.nodes
    again = [node.op.name for node in nodes if node.phase == "mirror"]
    first = [node.op.name for node in nodes if node.phase != "mirror"]
    equal = keyed(plan)
    found = chain(costs=equal).recomputation
    assert found.nodes == len(again) > 0
    assert found.extra_time_fraction == pytest.approx(len(again) / len(first))
    doubled = tuple(
        replace(entry, seconds=2.0) if entry.op == "tanh" else entry for entry in equal.measured
    )
    slower = chain(costs=replace(equal, measured=doubled)).recomputation
    assert slower.extra_time_fraction == pytest.approx(
        (len(again) + again.count("tanh")) / (len(first) + first.count("tanh"))
    )
    assert slower.extra_time_fraction != found.extra_time_fraction
    flops = plan.recomputation.extra_flops_fraction
    assert found.extra_flops_fraction == slower.extra_flops_fraction == flops


def test_the_roofline_is_chosen_by_name():
    plan = chain(roofline="h200")
    nodes = [node for node in plan.graph.nodes if node.op.views is None]
    fresh = sum(roofline(n, H200) for n in nodes if n.phase != "mirror")
    extra = sum(roofline(n, H200) for n in nodes if n.phase == "mirror")
    assert plan.recomputation.extra_time_fraction == pytest.approx(extra / fresh)
    assert plan.recomputation == recomputation(plan.graph, CostModel(H200))
    with pytest.raises(OptionError, match="unknown device profile 'gpu'"):
        chain(roofline="gpu")


def test_the_printout_names_the_model_where_it_is_not_the_default():
    plain = chain()
    costs = keyed(plain)
    kernels = f"{len(costs.measured)} kernels measured on cpu"
    assert "costs=" not in plain.text()
    assert chain(roofline="cpu").text() == plain.text()
    assert "costs=roofline of a100\n" in str(chain(roofline="a100"))
    assert f"costs={kernels}\n" in str(chain(costs=costs))
    both = chain(costs=costs, roofline="v100")
    told = f"costs={kernels}, others from the roofline of v100 "
    assert told in " ".join(both.text().split())  # longer than a line
    assert both.summary("chain")["settings"]["costs"].startswith(kernels)


def test_the_roofline_moves_no_byte():
    plain, other = chain(), chain(roofline="h200")
    places = [[(b.offset, b.bytes) for b in plan.buffers] for plan in (plain, other)]
    assert places[0] == places[1]
    assert plain.device == other.device


def test_extra_time_does_not_depend_on_the_order_of_nodes():
    graph = chain().graph
    parts = {
        recomputation(graph.in_order(nodes), CostModel(CPU)).extra_time_fraction
        for nodes in (graph.nodes, graph.nodes[::-1], graph.nodes[1::2] + graph.nodes[::2])
    }
    assert len(parts) == 1
    assert parts.pop() > 0
