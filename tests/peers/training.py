"""A network trained in graphc and in torch, in float64: losses and parameters of a few steps."""

import numpy as np
import onnx
import pytest

import graphc as g

torch = pytest.importorskip("torch", reason="torch is not installed")

STEPS, RATE = 3, 0.1


def trains_alike(loss, peer, feeds, path, outputs=None):
    """Train both; `peer(parameters, feeds, outputs)` is torch's loss of tensors by name.

    The same network computed again in part, and the one that is read from the file that the
    program was written to, have the same bits.
    """
    outputs = outputs or {}
    rng = np.random.default_rng(5)
    optimizer = g.optim.SGD(RATE)
    program = g.compile(loss, outputs=outputs, optimizer=optimizer)
    again = g.compile(loss, outputs=outputs, optimizer=optimizer, recompute="sublinear")
    start = {n: a + 0.2 * rng.standard_normal(a.shape) for n, a in program.parameters.items()}
    program.parameters.update(start)
    again.parameters.update(start)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in start.items()}
    for _ in range(STEPS):
        found, other = program.step(feeds), again.step(feeds)
        np.testing.assert_array_equal(found["loss"], other["loss"])
        wanted = peer(tensors, feeds, found)
        wanted.backward()
        np.testing.assert_allclose(found["loss"], wanted.item(), rtol=1e-9)
        with torch.no_grad():
            for tensor in tensors.values():
                tensor -= RATE * tensor.grad
                tensor.grad = None
    for name, tensor in tensors.items():
        wanted = tensor.detach().numpy()
        largest = np.abs(wanted).max()
        np.testing.assert_allclose(program.parameters[name], wanted, rtol=0, atol=1e-9 * largest)
    _is_written(program, optimizer, feeds, path)


def _is_written(program, optimizer, feeds, path):
    g.onnx.save(program, path, training=True)
    onnx.checker.check_model(str(path), full_check=True)
    network = g.onnx.load(path)
    rest = {name: value for name, value in network.outputs.items() if name != "loss"}
    again = g.compile(network.outputs["loss"], outputs=rest, optimizer=optimizer)
    network.initialize(again)
    if "counter/step" in again.states:
        again.states["counter/step"] = program.states["counter/step"]
    np.testing.assert_array_equal(again.step(feeds)["loss"], program.step(feeds)["loss"])
