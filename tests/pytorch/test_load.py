"""What `graphc.torch.load` makes of a module: names, roles, buffers, modes, dropout, errors."""

import re
import sys

import numpy as np
import pytest

import graphc as g
from graphc.errors import DependencyError, OptionError, TorchError


def test_without_torch_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DependencyError, match=r"'\.\[torch\]'"):
        g.torch.load(None)


torch = pytest.importorskip("torch", reason="torch is not installed")
nn, F = torch.nn, torch.nn.functional


class Changing(nn.Module):
    """A norm, a moving average, a table that is tied, a frozen weight and a constant buffer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.last = nn.Linear(4, 4, bias=False)
        self.last.weight = self.first[0].weight
        self.fixed = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("places", torch.arange(4.0))

    def forward(self, x, scale=None):
        h = self.last(self.first(x)) * self.fixed + self.places
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        return {"loss": (h * (self.average + 1)).pow(2).mean(), "hidden": [h, h * 2]}


def changing():
    torch.manual_seed(0)
    return Changing().double(), torch.randn(3, 4, dtype=torch.float64)


def test_names_roles_and_structure():
    module, x = changing()
    network = g.torch.load(module, (x,), {"scale": None})
    assert list(network.inputs) == ["x"]
    assert list(network.outputs) == ["loss", "hidden.0", "hidden.1"]
    kinds = {entry.name: (entry.kind, entry.is_trained) for entry in network.report}
    learnt, moved, fixed = ("parameter", True), ("statistic", False), ("constant", False)
    assert kinds == {
        "first.0.weight": learnt, "first.0.bias": learnt, "first.1.weight": learnt,
        "first.1.bias": learnt, "fixed": ("parameter", False), "average": moved, "places": fixed,
        "first.1.running_mean": moved, "first.1.running_var": moved,
        "first.1.num_batches_tracked": fixed,
    }  # fmt: skip
    assert network.names["last.weight"] == network.names["first.0.weight"] == "first.0.weight"
    graph = g.plan(network.outputs["loss"]).graph
    assert {"first/0", "first/1", "last"} <= {node.scope for node in graph.nodes}
    assert {s.name for s in graph.states if s.role == "parameter"} <= set(module.state_dict())


def test_training_moves_parameters_and_buffers_as_torch_does():
    module, x = changing()
    network = g.torch.load(module, (x,))
    program = g.compile(network.outputs["loss"], optimizer=g.optim.SGD(0.1))
    network.initialize(program)
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 0.1)
    for _ in range(3):
        wanted = module(x)["loss"]
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(program.step(x=x.numpy())["loss"], wanted.item(), rtol=1e-9)
    for name, tensor in module.state_dict().items():
        called = network.names.get(name)
        if called in program.states:
            np.testing.assert_allclose(program.states[called], tensor.numpy(), atol=1e-9)
    outside = g.compile(outputs={"h": network.outputs["hidden.0"]})
    outside.states.update({name: program.states[name] for name in outside.states})
    wanted = module.eval()(x)["hidden"][0].detach().numpy()
    np.testing.assert_allclose(outside.step(x=x.numpy())["h"], wanted, atol=1e-9)


@pytest.mark.parametrize(
    ("trainable", "learnt"),
    [(False, set()), (r"bias$", {"0.bias", "2.bias"}), (["2.weight"], {"2.weight"})],
)
def test_trainable_chooses_and_states_may_begin_with_digits(trainable, learnt):
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    network = g.torch.load(module, (torch.randn(2, 4),), trainable=trainable)
    assert {entry.name for entry in network.report if entry.is_trained} == learnt
    plan = g.plan(g.mean(network.output), training=True)
    assert set(network.states) == {s.name for s in plan.graph.states} == set(module.state_dict())
    text = g.format_graph(plan.graph)
    assert g.format_graph(g.parse_graph(text)) == text
    with pytest.raises(OptionError, match="trainable"):
        g.torch.load(module, (torch.randn(2, 4),), trainable="nothing")


def test_without_weights_and_from_a_file(tmp_path):
    module, args = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5)), (torch.randn(2, 4),)
    assert not g.torch.load(module, args, weights=False).states
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, args), path)
    networks = [g.torch.load(module, args), g.torch.load(path)]
    plans = [g.plan(outputs=dict(network.outputs)) for network in networks]
    assert g.format_graph(plans[0].graph) == g.format_graph(plans[1].graph)
    for name, array in networks[0].states.items():
        np.testing.assert_array_equal(array, networks[1].states[name])


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_is_graphcs_own(inplace):
    class Dropping(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x * 1, 0.25, self.training, inplace)

    x = torch.ones(64, 64)
    network = g.torch.load(Dropping(), (x,))
    assert [n.op.name for n in g.plan(network.output, training=True).graph.nodes].count("dropout")
    drawn = g.compile(outputs={"y": network.output}, training=True).step(x=x.numpy())["y"]
    assert set(np.unique(drawn)) == {0.0, np.float32(1 / 0.75)}
    assert 0.7 < (drawn > 0).mean() < 0.8
    outside = g.compile(outputs={"y": network.output}).step(x=x.numpy())["y"]
    np.testing.assert_array_equal(outside, x.numpy())
    assert g.torch.load(Dropping().eval(), (x,)).output.type == network.output.type


class Lacking(nn.Module):
    def forward(self, x):
        return torch.linalg.svdvals(torch.fft.rfft(x).abs())


def test_all_that_is_missing_is_one_error_with_counts_and_modules():

    class Several(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(Lacking() for _ in range(3))

        def forward(self, x):
            return [part(x) for part in self.parts]

    with pytest.raises(TorchError) as error:
        g.torch.load(Several(), (torch.randn(4, 8),))
    told = str(error.value)
    assert re.search(
        r"_fft_r2c: 3 occurrences, first in '_fft_r2c' of parts.0; .*in parts.0, parts.1", told
    )
    assert "svd" in told


class Writing(nn.Module):
    def forward(self, x):
        x.add_(1)
        return x * 2


class Choosing(nn.Module):
    def forward(self, x):
        return x[x > 0].sum()


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Sized(nn.Module):
    """Calls a function whose result has a size that numbers of x decide."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) * 2


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (Sized(torch.nonzero), "nonzero: .* depends on numbers that a step computes; use a mask"),
        (Sized(torch.unique), "_unique2: .* depends on numbers that a step computes; use a mask"),
        (Sized(lambda x: torch.bincount(x.long())), "bincount: .* depends on numbers"),
        (Sized(lambda x: x * x.sum().item()), r"not known before it; leave out item\(\)"),
        (Sized(lambda x: x.narrow(0, torch.tensor(9).item(), 1)), "start out of range"),
        (Writing(), "user input mutation is not supported"),
        (Sized(lambda x: torch.linalg.inv(x.repeat(5, 5)[:5, :5])), "4 rows, .*; compute it out"),
        (Sized(lambda x: torch.linalg.det(x.repeat(5, 5)[:5, :5])), "4 rows, .*; compute it out"),
        (Sized(lambda x: torch.linalg.cholesky(x.outer(x))), "linalg_cholesky_ex: .* a buffer"),
        (
            Sized(lambda x: F.embedding_bag(torch.arange(3), x[:, None], x.argsort(), mode="max")),
            "_embedding_bag.*; maxima of bags with computed offsets .*; give indices as a matrix",
        ),
        (
            Sized(lambda x: F.embedding(torch.arange(3), x[:, None], scale_grad_by_freq=True)),
            "embedding: .*; set scale_grad_by_freq=False",
        ),
        (Choosing(), "a computed mask"),
        (Branching(), "torch.export failed to export the module"),
    ],
)
def test_what_is_out_of_scope_is_told(module, told):
    with pytest.raises(TorchError, match=told) as error:
        g.torch.load(module, (torch.randn(3),))
    assert "token" not in str(error.value).lower()


def test_norms_with_cumulative_averages_need_a_momentum_in_training():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(TorchError, match=r"^module '1' is a BatchNorm1d with momentum=None.* 0\.1"):
        g.torch.load(module, (torch.randn(3, 4),))
    g.torch.load(module.eval(), (torch.randn(3, 4),))


def test_decompositions_of_constants_are_computed():
    matrix = torch.tensor([[2.0, 1.0], [0.0, 4.0]])
    network = g.torch.load(Sized(lambda x: torch.linalg.inv(matrix) @ x), (torch.randn(2),))
    (found,) = g.compile(outputs=network.outputs).step({"x": np.ones(2, "f4")}).values()
    np.testing.assert_allclose(found, [0.75, 0.5])


def test_the_same_tensor_twice_is_two_inputs():
    x = torch.randn(3)
    network = g.torch.load(nn.Bilinear(3, 3, 2), (x, x))
    assert len(g.plan(outputs=dict(network.outputs)).graph.inputs) == 2


def test_mistakes():
    with pytest.raises(OptionError, match="args must be a tuple"):
        g.torch.load(nn.ReLU(), torch.randn(3))
    with pytest.raises(OptionError, match="load needs a"):
        g.torch.load(3)
    with pytest.raises(TorchError, match=r"missing\.pt2' cannot be read"):
        g.torch.load("missing.pt2")


@pytest.mark.parametrize("name", ["norm", "std", "normalize", "weight_norm", "batch_norm"])
def test_statistics_of_half_precision_are_those_of_torch_in_float64(name):
    """Values are around 300, whose squares are infinite in float16."""
    batch_norm = nn.BatchNorm1d(64, affine=False, track_running_stats=False)
    functions = {
        "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
        "std": lambda x: torch.cat([x, -x]).std(0),
        "normalize": lambda x: F.normalize(x, dim=0),
        "weight_norm": lambda x: torch._weight_norm(x, x[:1], 1),
        "batch_norm": lambda x: batch_norm(torch.cat([x, -x])),
    }

    class Module(nn.Module):
        def forward(self, x):
            return functions[name](x)

    given = torch.linspace(250, 350, 32 * 64).reshape(32, 64).half()
    network = g.torch.load(Module(), (given,))
    (output,) = network.outputs.values()
    found = g.compile(outputs=[output]).step(x=given.numpy())["output0"].astype(np.float64)
    np.testing.assert_allclose(found, functions[name](given.double()).numpy(), rtol=3e-3)


class Shared(nn.Module):
    """Two layers whose weights are parts of one tensor."""

    def __init__(self, first, second):
        super().__init__()
        whole = torch.arange(24.0).reshape(4, 6)
        self.first, self.second = nn.Parameter(first(whole)), nn.Parameter(second(whole))

    def forward(self, x):
        return (x * self.first.sum() + self.second.sum()).sum()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda w: w, lambda w: w),
        (lambda w: w, lambda w: w[1:2]),
        (lambda w: w[:, :4], lambda w: w[:, 3:]),
        (lambda w: w, lambda w: w.t()),
        (lambda w: w, lambda w: w.view(torch.int32).view(torch.float32)[:, ::2]),
    ],
)
def test_parameters_that_overlap_are_refused(first, second):
    x = torch.ones(3)
    with pytest.raises(TorchError, match="'first' and 'second' overlap in memory"):
        g.torch.load(Shared(first, second), (x,))
    assert g.torch.load(Shared(first, second), (x,), trainable=False).outputs


@pytest.mark.parametrize("frozen", ["parameter", "buffer", "constant"])
def test_a_frozen_tensor_in_the_memory_of_a_parameter_is_refused(frozen):
    module = Shared(lambda w: w, lambda w: w.clone())
    whole = module.first.detach()
    del module.second
    if frozen == "parameter":
        module.second = nn.Parameter(whole, requires_grad=False)
    elif frozen == "buffer":
        module.register_buffer("second", whole)
    else:
        module.second = whole
    with pytest.raises(TorchError, match="overlap in memory"):
        g.torch.load(module, (torch.ones(3),))
    module.first.requires_grad_(False)
    assert g.torch.load(module, (torch.ones(3),)).outputs


@pytest.mark.parametrize("way", ["module", "program", "file"])
def test_tied_weights_are_one_parameter(way, tmp_path):
    module, x = Shared(lambda w: w, lambda w: w.clone()), torch.ones(3)
    module.second = module.first
    given = module if way == "module" else torch.export.export(module, (x,))
    if way == "file":
        torch.export.save(given, tmp_path / "tied.pt2")
        given = tmp_path / "tied.pt2"
    network = g.torch.load(given, (x,) if way == "module" else ())
    assert [entry.name for entry in network.report if entry.is_trained] == ["first"]


def test_disjoint_parts_of_one_tensor_are_two_parameters():
    module = Shared(lambda w: w[:, :3], lambda w: w[:, 3:])
    network = g.torch.load(module, (torch.ones(3),))
    assert {entry.name for entry in network.report if entry.is_trained} == {"first", "second"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_with_narrow_statistics_are_refused_with_what_to_do(dtype):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(dtype)
    with pytest.raises(TorchError, match=r"load module.float\(\), and give precision="):
        g.torch.load(module, (torch.randn(2, 3, 8, 8, dtype=dtype),))
