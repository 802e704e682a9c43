"""What single nodes are measured to take, against what is known of them."""

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import fx  # noqa: E402

import graphc  # noqa: E402

aten = torch.ops.aten


@torch.library.custom_op("graphc_tests::picky", mutates_args=())
def picky(x: torch.Tensor) -> torch.Tensor:
    if x.flatten()[0] != -7:
        raise ValueError("no -7 in front")
    return x * 2


picky.register_fake(torch.empty_like)
picky.register_autograd(lambda ctx, gradient: gradient * 2)


class Picky(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        return picky((x * self.w).flatten().index_fill(0, torch.tensor([0]), -7.0)).exp().sum()


def node_of(target, *shapes, strides=None, dtype=torch.float32):
    """A node that calls `target` on tensors of these shapes."""
    graph = fx.Graph()
    given = []
    for number, shape in enumerate(shapes):
        each = graph.placeholder(f"x{number}")
        stride = (strides or {}).get(number)
        each.meta["val"] = (
            torch.empty_strided(shape, stride) if stride else torch.empty(shape, dtype=dtype)
        )
        given.append(each)
    node = graph.call_function(target, tuple(given))
    node.meta["val"] = torch.empty(1)
    return node


def measured(*nodes):
    from graphc.torch.budget.plan.costs import _run, key_of

    found = _run([key_of(node) for node in nodes], list(nodes))
    return [found[key_of(node)] for node in nodes]


def test_results_and_workspaces_of_ops_are_their_bytes():
    """Products, sums and statistics need their results alone."""
    product, view, two = measured(
        node_of(aten.mm.default, (64, 32), (32, 16)),
        node_of(aten.add.Tensor, (64, 32), (64, 32)),
        node_of(aten.var_mean.default, (64, 32)),
    )
    assert product.result_bytes == (64 * 16 * 4,)
    assert view.result_bytes == (64 * 32 * 4,)
    assert two.result_bytes == (4, 4)
    assert product.workspace == view.workspace == 0
    assert min(each.seconds for each in (product, view, two)) > 0


def test_a_workspace_is_what_is_freed_before_the_end():
    """A sum of what is doubled first: the doubled operand is gone when the sum is there."""

    def doubled_sum(x):
        return (x + x).sum()

    (found,) = measured(node_of(doubled_sum, (100, 10)))
    assert found.result_bytes == (4,)
    assert found.workspace == 100 * 10 * 4


def test_operands_have_the_strides_of_the_graph():
    seen = []

    def noted(x, y):
        seen.append((tuple(x.shape), x.stride(), y.stride()))
        return x + y

    measured(node_of(noted, (4, 6), (4, 6), strides={0: (1, 4), 1: (0, 1)}))
    assert set(seen) == {((4, 6), (1, 4), (0, 1))}


def test_numbers_drawn_while_measuring_leave_the_random_state():
    before = torch.get_rng_state()
    measured(node_of(aten.rand_like.default, (50,)))
    assert torch.equal(before, torch.get_rng_state())


def test_numbers_are_such_as_ops_take():
    """Probabilities, divisors, and rows of a table of one row."""
    p = node_of(aten.bernoulli.default, (50,))
    divided = node_of(aten.floor_divide.default, (50,), (50,), dtype=torch.int64)
    row = node_of(aten.embedding.default, (1, 8), (50,))
    row.args[1].meta["val"] = torch.zeros(50, dtype=torch.int64)
    found = measured(p, divided, row)
    assert [each.result_bytes for each in found] == [(50 * 4,), (50 * 8,), (50 * 8 * 4,)]
    assert not any(each.is_estimated for each in found)


def test_a_node_that_does_not_run_is_estimated_by_its_bytes():
    """It refuses whatever it is given; the other one is measured all the same."""
    refused, product = node_of(aten.mm.default, (2, 3), (2, 3)), node_of(aten.neg.default, (7,))
    found, other = measured(refused, product)
    assert found.is_estimated
    assert (found.workspace, found.result_bytes) == (0, ())
    assert found.seconds > 0
    assert not other.is_estimated
    assert other.result_bytes == (28,)


MEMORY = {
    "on a GPU": torch.OutOfMemoryError("CUDA out of memory"),
    "on a CPU": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"),
}


@pytest.mark.parametrize("where", MEMORY)
def test_out_of_memory_while_measuring_is_not_a_refusal(where):
    def failing(_):
        raise MEMORY[where]

    with pytest.raises(type(MEMORY[where]), match="memory"):
        measured(node_of(failing, (3,)))


def test_what_is_estimated_is_in_the_report():
    """An op of one's own that takes nothing but what the module gives it."""
    x = torch.randn(64, 64)
    step = graphc.torch.plan(Picky(), (x,), max_extra_time=0.0)
    (name,) = step.report.estimated
    assert name.startswith("picky")
    assert step.report.json["estimated"] == [name]
    assert f"not measured\n  {name}: estimated as a copy, without workspace" in str(step.report)
    found = step.verify()
    assert found.same_bits
    assert found.held


def test_measurements_are_kept_by_device_and_read_again(tmp_path, monkeypatch):
    from graphc.torch.budget.plan.costs import Store
    from graphc.torch.budget.plan.steps import Measured

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store.of_device(torch.device("cpu"))
    store.add({"mm": Measured(0.5, 12, (4, 8))})
    again = Store.of_device(torch.device("cpu"))
    assert again.known == {"mm": Measured(0.5, 12, (4, 8))}
    assert again.path is not None
    assert json.loads(again.path.read_text())
    again.path.write_text("{damaged")
    assert Store.of_device(torch.device("cpu")).known == {}


SETTINGS = [
    (torch.backends.mkldnn, "enabled", False),
    (torch.backends.mkldnn, "deterministic", True),
    (torch.backends.mkldnn.matmul, "fp32_precision", "bf16"),
    (torch.backends.cudnn, "enabled", False),
    (torch.backends.cudnn, "deterministic", True),
    (torch.backends.cudnn, "benchmark", True),
]


def test_measurements_are_kept_by_settings_of_torch():
    from graphc.torch.budget.plan.costs import Store

    def path():
        return Store.of_device(torch.device("cpu")).path

    plain, others = path(), set()
    for owner, name, value in SETTINGS:
        before = getattr(owner, name)
        setattr(owner, name, value)
        others.add(path())
        setattr(owner, name, before)
    torch.use_deterministic_algorithms(True)
    others.add(path())
    torch.use_deterministic_algorithms(False)
    assert len(others - {plain}) == len(SETTINGS) + 1
    assert path() == plain


def test_what_two_processes_measure_is_kept_by_both(tmp_path, monkeypatch):
    """Each has read the file before the other wrote; of what both measured the first stays.

    What did not run may run the next time.
    """
    from graphc.torch.budget.plan.costs import Store
    from graphc.torch.budget.plan.steps import Measured

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cpu = torch.device("cpu")
    one, other = Store.of_device(cpu), Store.of_device(cpu)
    one.add({"mm": Measured(0.5, 12, (4,)), "add": Measured(0.1, 0, (4,))})
    other.add({"mm": Measured(0.7, 12, (4,)), "tanh": Measured(0.2, 0, (), is_estimated=True)})
    assert other.known["mm"].seconds == 0.5
    assert other.known.pop("tanh").is_estimated
    assert other.known == Store.of_device(cpu).known
    assert sorted(other.known) == ["add", "mm"]
    assert sorted(one.path.parent.iterdir()) == [one.path, one.path.with_suffix(".lock")]
