"""What native kernels ask of planners."""

import numpy as np
from runtime.cpu.onednn.convolutions import lying, nodes

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
