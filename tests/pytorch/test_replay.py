"""The checker of plans for torch: it counts the planner's bytes, and finds what is wrong."""

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import fx, nn  # noqa: E402
from torch._prims.rng_prims import run_with_rng_state  # noqa: E402
from torch_cases.modules import MODULES  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402
from graphc.torch.budget.plan import costs  # noqa: E402
from graphc.torch.budget.plan.steps import Measured  # noqa: E402
from graphc.torch.budget.trace import joint  # noqa: E402

aten = torch.ops.aten
FAST = "MLP"
NOT_MEASURED = Measured(1e-6, 0, (), is_estimated=True)


@pytest.mark.parametrize(
    "name",
    [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODULES],
)
def test_it_counts_what_the_planner_counts(name):
    with torch._dynamo.config.patch(allow_rnn=True):
        planned = graphc.torch.plan(*MODULES[name]("small"), "knee").plans[-1]
    counts_alike(planned.torch_steps)


def counts_alike(torch_steps):
    from graphc.torch.budget.goal import checked
    from graphc.torch.budget.plan.planner import TorchPlanner

    planner = TorchPlanner(torch_steps.steps, torch_steps.state_of)
    span = planner.no_recompute.peak_bytes - planner.least.peak_bytes
    budgets = [planner.least.peak_bytes + part * span // 5 for part in range(6)]
    plans = {plan.peak_bytes: plan for plan in map(planner.within, budgets)}
    assert len(plans) > 1 or not span
    for plan in plans.values():
        *_, found = checked(torch_steps, plan)
        assert found.peak.bytes == plan.peak_bytes
        assert max(moment.bytes for moment in found.moments) == plan.peak_bytes


class Small(nn.Module):
    """Dropout, a norm that is used four times, a buffer that changes, and parts of one shape."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm, self.drop = nn.BatchNorm1d(32), nn.Dropout(0.3)
        self.register_buffer("scale", torch.ones(32))

    def forward(self, x):
        x = x * self.scale.clone()
        self.scale.mul_(0.9)
        for part in self.parts:
            x = torch.tanh(self.drop(self.norm(part(x)))) + x
        return x.square().sum()


@pytest.fixture(scope="module")
def planned():
    """The plan of the fewest bytes, which repeats random ops and norms."""
    return graphc.torch.plan(Small(), (torch.randn(64, 32),), max_extra_time=10.0).plans[-1]


@pytest.fixture
def plan(planned):
    """What the checker is told of it, in graphs that may be changed."""
    from graphc.torch.budget.goal import to_replay

    graphs = copied(planned.forward.graph), copied(planned.backward.graph)
    return to_replay(planned.torch_steps, *graphs)


def copied(graph):
    made = fx.Graph()
    (output,) = graph.find_nodes(op="output")
    made.output(made.graph_copy(graph, {})).meta = dict(output.meta)
    return made


def of(graph, target):
    """The nodes of an op."""
    return [node for node in graph.nodes if node.target is target]


def refused(plan, match):
    from graphc.torch.budget.check.replay import replay

    with pytest.raises(TorchError, match=match):
        replay(plan)


def changed_output(graph, change):
    (output,) = (node for node in graph.nodes if node.op == "output")
    returned = list(output.args[0])
    change(returned)
    output.args = (tuple(returned),)


def swapped(one, other):
    def change(returned):
        returned[one], returned[other] = returned[other], returned[one]

    return change


def alike(graph, begin):
    """Places of two returned values of one shape, from `begin` on."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    by_shape = {}
    for place, node in enumerate(output.args[0]):
        if place >= begin and node is not None and node.meta["val"].dtype.is_floating_point:
            by_shape.setdefault(tuple(node.meta["val"].shape), []).append(place)
    return max(by_shape.values(), key=len)[:2]


def test_it_counts_what_the_planner_counts_of_norms_that_share_statistics(planned):
    counts_alike(planned.torch_steps)


def test_bytes_of_a_step_by_hand():
    """y = tanh(x w) is kept, then its gradient takes the place of that of the sum, then w's."""

    class Tanh(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(64, 8))

        def forward(self, x):
            return torch.tanh(x @ self.w).sum()

    found = graphc.torch.plan(Tanh(), (torch.randn(100, 64),), "knee").plans[-1].replay
    y, w, scalar = 4 * 100 * 8, 4 * 64 * 8, 4
    fixed = w + 4 * 100 * 64
    made = [moment.made for moment in found.moments]
    levels = [moment.bytes - fixed - moment.workspace for moment in found.moments]
    assert made == [y, 0, scalar, scalar, y, w]  # product, tanh over it, sum, boundary, gradients
    assert levels == [y, y, y + scalar, y + 2 * scalar, 2 * y + 2 * scalar, y + w + 2 * scalar]
    assert found.boundary == 3


def test_it_names_the_node_whose_peak_is_above_what_is_claimed(plan):
    from graphc.torch.budget.check.replay import check, replay

    peak = replay(plan).peak
    check(plan, peak.bytes)
    with pytest.raises(TorchError, match=f"at {peak.node.name}, .*{peak.bytes:,} bytes"):
        check(plan, peak.bytes - 1)


def test_a_saved_tensor_that_is_missing(plan):
    changed_output(plan.forward, lambda returned: returned.pop())
    refused(plan, "backward graph, .* are saved")


def test_a_saved_tensor_that_is_another(plan):
    changed_output(plan.forward, swapped(*alike(plan.forward, plan.forward_outputs)))
    refused(plan, "not a value of the module")


def test_a_read_of_a_value_that_is_not_there(plan):
    (made, *_) = of(plan.forward, aten.addmm.default)
    (reader, *_) = of(plan.backward, aten.native_batch_norm_backward.default)
    reader.update_arg(1, made)
    refused(plan, f"at {reader.name}, {made.name} is read, but was not saved")


def test_a_read_of_a_value_that_is_overwritten(plan):
    (square,) = of(plan.forward, aten.pow.Tensor_Scalar)
    x = square.args[0]
    with plan.forward.inserting_before(square):
        written = plan.forward.call_function(aten.relu_.default, (x,))
    written.meta = dict(x.meta)
    refused(plan, "not a value of the module")
    written.target = aten.tanh_.default  # an op that the module has, of another value
    refused(plan, "not a value of the module")
    written.target = aten.add_.Tensor
    (made,) = (node for node in of(plan.forward, aten.add.Tensor) if node is x)
    made.prepend(written)
    written.args = made.args
    refused(
        plan,
        f"at {made.name}, {made.args[0].name} is read after {written.name} has overwritten it",
    )


def test_a_repeated_random_op_without_its_state(plan):
    node = of(plan.backward, run_with_rng_state)[0]
    node.target, node.args = node.args[1], node.args[2:]
    refused(plan, f"at {node.name}, the random numbers differ")


def test_random_ops_in_another_order(plan):
    """The second draw is moved before the first of another tensor: both draw other numbers."""
    one = of(plan.forward, aten.native_dropout.default)[0]
    extra = plan.forward.node_copy(one)
    one.prepend(extra)
    refused(plan, "the random numbers differ")


def test_a_read_of_a_source_that_has_changed_after_the_turn(plan):
    (kept,) = of(plan.forward, aten.clone.default)
    (source,) = kept.all_input_nodes

    def change(returned):
        returned[returned.index(kept)] = source

    changed_output(plan.forward, change)
    given = next(node for node in plan.backward.nodes if node.name == kept.name)
    (reader, *_) = given.users
    with plan.backward.inserting_before(reader):
        again = plan.backward.call_function(aten.clone.default, (given,))
    again.meta = dict(kept.meta)
    reader.replace_input_with(given, again)
    refused(plan, f"{given.name} is read after the end of the forward pass has overwritten it")


def test_gradients_in_another_order(plan):
    changed_output(plan.backward, swapped(*alike(plan.backward, 0)))
    refused(plan, "of the backward graph differs")


def test_a_gradient_that_is_missing(plan):
    def change(returned):
        returned[alike(plan.backward, 0)[0]] = None

    changed_output(plan.backward, change)
    refused(plan, "is nothing")
    changed_output(plan.backward, lambda returned: returned.pop())
    refused(plan, "values are returned")


def test_the_axes_of_copies_of_copies_are_those_of_permuted_tensors():
    from graphc.torch.budget.check.contents import Numbers

    x = torch.randn(2, 3, 4)
    for one, other in itertools.product(itertools.permutations(range(3)), repeat=2):
        numbers = Numbers()
        numbers.move(1, 0, one)
        numbers.move(2, 1, (0, 1, 2))
        numbers.move(3, 2, other)
        found, axes = numbers.elements(3)
        assert found == 0
        assert torch.equal(x.permute(one).permute(other), x.permute(axes) if axes else x)
        assert (axes == ()) == (x.permute(one).permute(other).stride() == x.stride())


class Evaluated(nn.Sequential):
    """A norm that reads its running statistics."""

    def __init__(self):
        super().__init__(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.eval()


class Recurrent(nn.LSTM):
    """Of plain input torch traces its form for inference."""

    def __init__(self):
        super().__init__(8, 8)

    def forward(self, x):
        return super().forward(x)[0].sum()


@pytest.mark.parametrize(
    ("make", "shape", "name", "fault"),
    [
        (Evaluated, (4, 8), "NORM_BACKWARD", {aten.native_batch_norm_backward.default: None}),
        (Recurrent, (3, 4, 8), "_keep_recurrent_workspaces", lambda _: None),
    ],
)
def test_a_prepared_step_follows_its_trace(make, shape, name, fault, monkeypatch):
    """Statistics that a norm reads are taken from it; a layer's workspace is not kept.

    Nothing is measured, since torch does not check what such ops are given.
    """
    module, x = make(), torch.randn(shape)
    monkeypatch.setattr(costs, "_run", lambda keys, _: dict.fromkeys(keys, NOT_MEASURED))
    graphc.torch.plan(module, (x,), max_extra_time=0.0)
    monkeypatch.setattr(joint, name, fault)
    with pytest.raises(TorchError, match="the computed value is not a value of the module"):
        graphc.torch.plan(module, (x,), max_extra_time=0.0)


def test_what_the_caller_has_is_not_overwritten(plan):
    """A gradient that comes in, an output, and a parameter; each by an op of the module."""
    (tangent,) = (node for node in plan.backward.nodes if str(node.target).startswith("tangents"))
    (output,) = (node for node in plan.backward.nodes if node.op == "output")
    parameter = next(n for n in plan.backward.nodes if str(n.target).startswith("primals_3"))
    for node, told in (tangent, "gradient of the caller"), (parameter, "has another final content"):
        with plan.backward.inserting_before(output):
            write = plan.backward.call_function(aten.neg_.default, (node,))
        write.meta = dict(node.meta)
        with_neg = replace(plan, joint=with_op(plan.joint, aten.neg.default, node.name))
        refused(with_neg, told)
        plan.backward.erase_node(write)


def with_op(graph, target, operand):
    """A joint graph in which an op is also computed, of the named node, and nobody reads it."""
    made = copied(graph)
    (output,) = (node for node in made.nodes if node.op == "output")
    node = next(each for each in made.nodes if each.name == operand)
    with made.inserting_before(output):
        made.call_function(target, (node,)).meta = dict(node.meta)
    return made
