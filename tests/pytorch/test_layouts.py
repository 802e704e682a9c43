"""Strides of a planned graph, against those that are there when ops run."""

import operator

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
random_modules = pytest.importorskip("torch_cases.random_modules")
steps = pytest.importorskip("torch_cases.steps")

from torch import fx  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

import graphc  # noqa: E402
from graphc.torch.budget.trace.layouts import LAYOUTS, lay_as_kernels_do  # noqa: E402

aten = torch.ops.aten
SHAPE = 4, 32, 2, 4
ORDERS = {
    "channels first": (0, 1, 2, 3),
    "channels last": (0, 2, 3, 1),
    "samples behind": (2, 3, 0, 1),
}
"""Axes from the farthest elements to the nearest."""


def tensor(order):
    back = sorted(range(4), key=order.__getitem__)
    return torch.rand([SHAPE[axis] for axis in order]).permute(back)


def case(target, x, gradient):
    weight, ones = torch.rand(32), torch.ones(32)
    groups, all_three = (4, 32, 8, 4), [True] * 3
    of_groups = torch.rand(4, 4), torch.rand(4, 4)
    of_channels = weight, torch.zeros(32), ones
    return {
        aten.native_group_norm.default: (x, weight, ones, *groups, 1e-5),
        aten.native_group_norm_backward.default: (
            *(gradient, x, *of_groups, weight, *groups, all_three),
        ),
        aten._native_batch_norm_legit_functional.default: (
            *(x, weight, ones, *of_channels[1:], True, 0.1, 1e-5),
        ),
        aten.native_batch_norm_backward.default: (
            *(gradient, x, *of_channels, *of_channels[1:], True, 1e-5, all_three),
        ),
        aten.native_dropout_backward.default: (gradient, x > 0.5, 2.0),
    }[target]


@pytest.mark.parametrize("of_gradient", ORDERS)
@pytest.mark.parametrize("of_x", ORDERS)
@pytest.mark.parametrize("target", LAYOUTS, ids=str)
def test_results_and_what_is_made_of_them_lie_as_when_ops_run(target, of_x, of_gradient):
    args = case(target, tensor(ORDERS[of_x]), tensor(ORDERS[of_gradient]))
    if "group_norm" in str(target) and of_x == "samples behind":
        pytest.skip("the kernel takes no such operand")
    wanted = target(*args)
    graph, mode = fx.Graph(), FakeTensorMode()
    given = []
    for number, each in enumerate(args):
        if isinstance(each, torch.Tensor):
            node = graph.placeholder(f"x{number}")
            node.meta["val"] = mode.from_tensor(each)
            given.append(node)
        else:
            given.append(each)

    def call(called, *operands):
        node = graph.call_function(called, operands)
        with mode:
            node.meta["val"] = called(*fx.map_arg(operands, lambda each: each.meta["val"]))
        return node

    first = made = call(target, *given)
    if not isinstance(wanted, torch.Tensor):
        first, wanted = call(operator.getitem, made, 0), wanted[0]
    view, copy = call(aten.transpose.int, first, 1, 2), call(aten.mul.Tensor, first, 2.0)
    lay_as_kernels_do(graph, mode)
    assert first.meta["val"].stride() == wanted.stride()
    assert view.meta["val"].stride() == wanted.transpose(1, 2).stride()
    assert copy.meta["val"].stride() == (wanted * 2.0).stride()
    storages = [each.meta["val"].untyped_storage()._cdata for each in (first, view, copy)]
    assert storages[0] == storages[1] != storages[2]


RECIPES = {
    "a convolution behind a group norm": (("group norm", "conv with groups"), 4),
    "a pool behind a group norm": (("group norm", "pool"), 192),
}


@pytest.mark.parametrize("name", RECIPES)
def test_no_node_allocates_more_than_planned(name):
    """Kernels for channels last have workspaces that those for channels first do not have."""
    parts, batch = RECIPES[name]
    module, args = random_modules.Recipe(parts, batch, 0).make()
    step = graphc.torch.plan(module, args, max_extra_time=0.0)
    found = step.verify()
    assert found.same_bits
    assert found.worst is None or found.worst.measured_bytes <= found.worst.planned_bytes
    measured = steps.Run(module, step, args).peak()
    assert measured <= step.report.peak_bytes
