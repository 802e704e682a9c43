"""One network in graphc and in torch, in float64: the loss and every parameter's gradient."""

import numpy as np
import pytest

import graphc as g

torch = pytest.importorskip("torch", reason="torch is not installed")
RNG = np.random.default_rng(0)


def close(found, wanted, largest=0.0):
    """To 1e-8 of the tensor's largest element. A bias before a norm has no gradient but rounding of
    sums, whose order differs with threads: there both must be 0 to 1e-10 of the network's largest.
    """
    scale = np.abs(wanted).max()
    if scale < 1e-10 * largest:
        assert np.abs(found).max() < 1e-10 * largest
        return
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8 * scale)


def compare(loss, torch_loss, feeds):
    """Run both; gradients of all parameters. `torch_loss(parameters)` takes tensors by name."""
    weights = [s for s in g.plan(loss, training=True).graph.states if s.trainable]
    gradients = g.gradient(loss, weights)
    named = {f"d/{w.name}": d for w, d in zip(weights, gradients, strict=True)}
    program = g.compile(loss, outputs=named, poison=True)
    start = {n: RNG.standard_normal(a.shape) * 0.3 for n, a in program.parameters.items()}
    program.parameters.update(start)
    found = program.step(feeds)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in start.items()}
    wanted = torch_loss(tensors)
    wanted.backward()
    close(found["loss"], wanted.detach().numpy())
    peers = {weight.name: tensors[weight.name].grad.numpy() for weight in weights}
    largest = max(np.abs(gradient).max() for gradient in peers.values())
    for name, gradient in peers.items():
        close(found[f"d/{name}"], gradient, largest)
