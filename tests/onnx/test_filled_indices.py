"""Scatters at indices that the importer folds into one number: values are those of onnx."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import graphc as g

X = np.arange(12, dtype=np.float32).reshape(4, 3)
CASES = {
    "equal elements": ("ScatterElements", np.full((1, 3), 2), np.ones((1, 3), np.float32)),
    "added to one row": ("ScatterND", np.full((3, 1), 1), np.eye(3, dtype=np.float32)),
    "one row": ("ScatterND", np.array([[3]]), np.full((1, 3), 7, np.float32)),
    "one row from the end": ("ScatterND", np.array([[-1]]), np.full((1, 3), 7, np.float32)),
    "equal rows taken": ("Gather", np.array([2, 2, 2]), None),
    "equal elements taken": ("GatherElements", np.full((2, 3), 3), None),
    "equal tuples taken": ("GatherND", np.full((2, 2), 1), None),
}


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_onnx(case, computed):
    """With `computed`, the file has ConstantOfShape instead of the constant."""
    op, indices, updates = CASES[case]
    given = {"indices": indices} if updates is None else {"indices": indices, "updates": updates}
    nodes = [helper.make_node(op, ["x", *given], ["y"])]
    if case == "added to one row":
        nodes[0].attribute.append(helper.make_attribute("reduction", "add"))
    if computed:
        value = numpy_helper.from_array(indices.reshape(-1)[:1])
        nodes.insert(0, helper.make_node("ConstantOfShape", ["shape"], ["indices"], value=value))
        given = {"shape": np.array(indices.shape), **given}
        del given["indices"]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": X})
    network = g.onnx.load(model)
    found = g.compile(outputs=network.outputs, poison=True).step(x=X)["y"]
    np.testing.assert_array_equal(found, wanted)
