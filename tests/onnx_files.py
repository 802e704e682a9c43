"""What tests of ONNX files share."""

import onnx
import scipy.special
from onnx import numpy_helper
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
