"""What native kernels ask of planners."""

import numpy as np
import pytest
from runtime.cpu.onednn.convolutions import lying, nodes

import graphc as g
from graphc.codegen.native import NativeTarget


def test_a_copied_map_is_in_the_workspace_once():
    """A part of a concatenation is brought into one piece, channels-last, and taken from there."""
    _, _, node = nodes((3, 16, 9, 11), (32, 16, 3, 3), padding=(1, 1))
    target, x = NativeTarget(), node.inputs[1]
    part = np.zeros((3, 9, 11, 24), np.float32).transpose(0, 3, 1, 2)[:, :16]
    strided = {
        value: lying(np.zeros(value.shape, np.float32)).strides
        for value in (*node.inputs, node.output)
    }
    rooms = [
        sum(type.bytes for type in target.workspace(node, strided | {x: strides}))
        for strides in (strided[x], part.strides)
    ]
    assert rooms[1] == rooms[0] + x.type.bytes


@pytest.mark.parametrize("wide", [False, True])
def test_filters_and_what_belongs_to_them_lie_row_major(wide):
    x = g.input("x", (2, 8, 9, 9), "float32" if wide else "bfloat16")
    h = g.conv2d(g.conv2d(x, 8, 3, name="first"), 8, 3, name="second")
    plan = g.plan(g.mean(h), optimizer=g.optim.Adam(1e-3), kernels="native")
    assert any(value.shape == h.shape for value in plan.strided)
    filters = [v for v in plan.placements if v.shape == (8, 8, 3, 3)]
    assert len(filters) >= 2 * 4
    for value in filters:
        assert value not in plan.strided
