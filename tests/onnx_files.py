"""What tests of ONNX files share."""

import numpy as np
import onnx
import scipy.special
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.op_run import OpRun

from graphc.onnx.recorded import recorded


class Erf(OpRun):
    """In double precision; that of onnx's reference rounds to float32."""

    def _run(self, x):
        return (scipy.special.erf(x),)


def array_of(tensor):
    return numpy_helper.to_array(tensor)


def recorded_in(path):
    """What graphc has recorded in a file, if that is still so."""
    model = onnx.load(path)
    held = {tensor.name: tensor for tensor in model.graph.initializer}
    return recorded(model, lambda name: array_of(held[name]))


def write_model(path, data="model.data"):
    """logits = tanh(x · w) + b of x (batch, 3), with the weights in a file of their own."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])]
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["product"], name="/first/Mul"),
        helper.make_node("Tanh", ["product"], ["squashed"], name="/first/Tanh"),
        helper.make_node("Add", ["squashed", "b"], ["logits"], name="/last/Add"),
    ]
    weights = [
        numpy_helper.from_array(np.array([0.5, 1.5, -1.0], np.float32), "w"),
        numpy_helper.from_array(np.zeros(3, np.float32), "b"),
    ]
    graph = helper.make_graph(nodes, "net", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, path, save_as_external_data=True, location=data, size_threshold=0)


def write_arrays(path):
    """Rows for the model: labels are the places of the largest numbers."""
    x = np.random.default_rng(0).standard_normal((20, 3))
    np.savez(path, x=x, labels=x.argmax(1))
