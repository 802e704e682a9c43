"""Networks of the zoo, written as ONNX, by onnxruntime."""

import numpy as np
import pytest
from models.test_zoo import SMALL

import graphc as g
from graphc.runtime.feeds import random_feeds

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.peers


def compare(program, path):
    feeds = {x.name: array for x, array in random_feeds(program.graph, 1).items()}
    g.onnx.save(program, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found, wanted = session.run(None, feeds), program.step(feeds).values()
    for array, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-6, atol=1e-6 * np.abs(other).max())


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_is_the_same(name, tmp_path):
    compare(g.compile(SMALL[name]()), tmp_path / "net.onnx")


def test_transposed_convolutions_in_groups(tmp_path):
    x = g.input("x", (2, 6, 5, 4))
    y = g.conv_transpose2d(x, 9, 3, stride=2, padding=1, output_padding=1, groups=3)
    compare(g.compile(outputs={"y": y}), tmp_path / "net.onnx")
