"""Networks of the zoo, written as ONNX, by onnxruntime."""

import numpy as np
import pytest
from models.test_zoo import SMALL

import graphc as g
from graphc.runtime.feeds import random_feeds

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytestmark = pytest.mark.peers


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_is_the_same(name, tmp_path):
    program = g.compile(SMALL[name]())
    feeds = {x.name: array for x, array in random_feeds(program.graph, 1).items()}
    g.onnx.save(program, tmp_path / "net.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "net.onnx", providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, feeds)
    np.testing.assert_allclose(found, program.step(feeds)["loss"], rtol=1e-6)
