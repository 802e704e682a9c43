"""What single nodes are measured to take, against what is known of them."""

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers

from torch import fx  # noqa: E402

from graphc.errors import TorchError  # noqa: E402

aten = torch.ops.aten


def node_of(target, *shapes, strides=None):
    """A node that calls `target` on tensors of these shapes."""
    graph = fx.Graph()
    given = []
    for number, shape in enumerate(shapes):
        each = graph.placeholder(f"x{number}")
        stride = (strides or {}).get(number)
        each.meta["val"] = torch.empty_strided(shape, stride) if stride else torch.empty(shape)
        given.append(each)
    node = graph.call_function(target, tuple(given))
    node.meta["val"] = torch.empty(1)
    return node


def measured(*nodes):
    from graphc.torch.costs import _run, key_of

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


def test_a_node_that_does_not_run_is_told():
    with pytest.raises(
        TorchError,
        match=r"mm.default cannot be run alone .*cannot be multiplied.* outside the module",
    ):
        measured(node_of(aten.mm.default, (2, 3), (2, 3)))


def test_measurements_are_kept_by_device_and_read_again(tmp_path, monkeypatch):
    from graphc.torch.costs import Store
    from graphc.torch.steps import Measured

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store = Store.of_device(torch.device("cpu"))
    store.add({"mm": Measured(0.5, 12, (4, 8))})
    again = Store.of_device(torch.device("cpu"))
    assert again.known == {"mm": Measured(0.5, 12, (4, 8))}
    assert again.path is not None
    assert json.loads(again.path.read_text())
    again.path.write_text("{damaged")
    assert Store.of_device(torch.device("cpu")).known == {}
