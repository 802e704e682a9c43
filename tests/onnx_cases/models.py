"""ONNX models made of nodes, for tests."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

import graphc

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def array(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model(nodes, inputs, outputs, tensors=None, opset=22, functions=(), domains=()):
    """A model of nodes, of inputs name → (type, shape), of outputs, and of tensors."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, *type) for n, type in inputs.items()],
        [helper.make_tensor_value_info(n, *type) for n, type in outputs.items()],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in (tensors or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions)


def run(network, **feeds):
    program = graphc.compile(outputs=dict(network.outputs))
    network.initialize(program)
    return program.step(feeds)
