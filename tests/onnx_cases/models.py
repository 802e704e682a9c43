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


def layers(weight_seed=0):
    """Two layers under scopes, the batch symbolic, as PyTorch names them."""
    nodes = [
        helper.make_node("Gemm", ["x:0", "fc1.weight", "fc1.bias"], ["/fc1/Gemm_output_0"],
                         "/fc1/Gemm", transB=1),
        helper.make_node("Relu", ["/fc1/Gemm_output_0"], ["h"], "/Relu"),
        helper.make_node("MatMul", ["h", "onnx::MatMul_12"], ["m"], "/fc2/MatMul"),
        helper.make_node("Add", ["m", "fc2.bias"], ["a"], "/fc2/Add"),
        helper.make_node("Mul", ["a", "two"], ["y"], "Scale_7"),
    ]  # fmt: skip
    tensors = {
        "fc1.weight": array((5, 4)),
        "fc1.bias": array((5,), 1),
        "onnx::MatMul_12": array((5, 3), 2),
        "fc2.bias": array((3,), 3),
        "two": np.float32(2),
    }
    types = {"x:0": (FLOAT, ("N", 4))}, {"y": (FLOAT, ("N", 3))}
    return model(nodes, *types, tensors), tensors
