"""Rules of pooling."""

from __future__ import annotations

import math
from typing import Literal

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import Rule, programs_of
from graphc.codegen.text.maps import own_operands
from graphc.codegen.text.operands import Places
from graphc.codegen.windows.program import Geometry, Windowed
from graphc.ir.graph import Node


def _rule(combine: Literal["Sum", "Max"], back: bool = False, mean: bool = False) -> Rule:
    def rule(node: Node, places: Places) -> NodeCalls:
        inputs, outputs = own_operands(node, places)
        a = node.attributes
        program = Windowed(
            node.op.name,
            Geometry(a.window, a.stride, a.padding, a.dilation),
            back,
            combine,
            node.inputs[0].shape,
            node.outputs[0].shape,
            tuple(inputs),
            tuple(outputs),
            float(math.prod(a.window)) if mean else 1.0,
        )
        return NodeCalls((program,))

    return rule


programs_of("max_pool2d")(_rule("Max"))
programs_of("max_pool2d_select")(_rule("Sum"))
programs_of("max_pool2d_gradient")(_rule("Sum", back=True))
programs_of("average_pool2d")(_rule("Sum", mean=True))
programs_of("average_pool2d_gradient")(_rule("Sum", back=True, mean=True))
