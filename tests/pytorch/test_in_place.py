"""Results that take an operand's place have the bits of those that do not."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import fx  # noqa: E402

from graphc.torch.budget.plan.in_place import COMMUTE, FIRST, GIVEN, may_overwrite, overwriting  # noqa: E402

aten = torch.ops.aten

OTHER_OPERANDS = {
    aten.add.Scalar: (0.3,),
    aten.mul.Scalar: (0.3,),
    aten.div.Scalar: (0.3,),
    aten.hardtanh_backward.default: ("tensor", -0.5, 0.5),
    aten.threshold_backward.default: ("tensor", 0.1),
    aten.elu_backward.default: (1.0, 1.0, 1.0, False, "tensor"),
    aten.leaky_relu_backward.default: ("tensor", 0.1, False),
    aten.masked_fill.Scalar: ("mask", 0.5),
}
"""What stands behind the first; where nothing is named, a tensor if the op takes one."""


def operands_of(target):
    generator = torch.Generator().manual_seed(0)
    tensors = sum(str(a.type) == "Tensor" for a in target._schema.arguments)
    named = OTHER_OPERANDS.get(target, ("tensor",) * (tensors - 1))
    drawn = {
        "tensor": lambda: torch.randn(37, 11, generator=generator),
        "mask": lambda: torch.rand(37, 11, generator=generator) < 0.5,
    }
    return [drawn["tensor"](), *(drawn[n]() if n in drawn else n for n in named)]


def node_of(target, operands):
    graph = fx.Graph()
    args = []
    for number, operand in enumerate(operands):
        if isinstance(operand, torch.Tensor):
            args.append(graph.placeholder(f"x{number}"))
            args[-1].meta["val"] = operand
        else:
            args.append(operand)
    node = graph.call_function(target, tuple(args))
    node.meta["val"] = target(*operands)
    return node


@pytest.mark.parametrize("target", [*FIRST, *GIVEN], ids=str)
def test_bits_are_those_of_a_result_of_its_own(target):
    operands = operands_of(target)
    node = node_of(target, operands)
    expected = target(*operands)
    overwritten = may_overwrite(node)
    assert len(overwritten) == (2 if target in COMMUTE else 1)
    for place in range(len(overwritten)):
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in operands]
        called, args, kwargs = overwriting(node, place, tuple(copies), {})
        result = called(*args, **kwargs)
        assert torch.equal(result, expected)
        assert result.data_ptr() == copies[place].data_ptr()


def test_operands_of_other_strides_types_or_of_a_part_of_a_storage_are_kept():
    x = torch.randn(4, 4)
    wide = torch.randn(4, 8)
    for given in (wide[:, :4], x.half(), x[:1].expand(4, 4)):
        node = node_of(aten.add.Tensor, [given, x])
        assert node.args[0] not in may_overwrite(node)
    assert len(may_overwrite(node_of(aten.add.Tensor, [x, x.clone()]))) == 2


def test_a_scaled_operand_does_not_change_places():
    x, y = torch.randn(4), torch.randn(4)
    node = node_of(aten.add.Tensor, [x, y])
    node.kwargs = {"alpha": 2}
    assert len(may_overwrite(node)) == 1
