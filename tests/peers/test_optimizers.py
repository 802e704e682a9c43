"""Optimizers against torch's, in float64 but for the rates. Run by `make nightly`."""

import numpy as np
import pytest
from peers.comparison import RNG

import graphc as g

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")

RATE, STEPS = 0.0625, 5
X, TARGET = RNG.standard_normal((6, 4)), RNG.standard_normal((6, 3))
WEIGHT = RNG.standard_normal((3, 4))
RMS = {"alpha": 0.9, "weight_decay": 0.125}

PAIRS = {
    "nesterov": (
        lambda: g.optim.Nesterov(RATE, 0.75, 0.125),
        lambda p: torch.optim.SGD(p, RATE, 0.75, weight_decay=0.125, nesterov=True),
    ),
    "adam": (
        lambda: g.optim.Adam(RATE, weight_decay=0.125),
        lambda p: torch.optim.Adam(p, RATE, weight_decay=0.125),
    ),
    "adamw": (
        lambda: g.optim.AdamW(RATE, weight_decay=0.125),
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.125),
    ),
    "adagrad": (
        lambda: g.optim.Adagrad(RATE, weight_decay=0.125, initial=0.25),
        lambda p: torch.optim.Adagrad(
            p, RATE, weight_decay=0.125, initial_accumulator_value=0.25
        ),
    ),
    "rmsprop": (
        lambda: g.optim.RMSProp(RATE, **RMS), lambda p: torch.optim.RMSprop(p, RATE, **RMS),
    ),
    "rmsprop, centered, with momentum": (
        lambda: g.optim.RMSProp(RATE, **RMS, momentum=0.75, centered=True),
        lambda p: torch.optim.RMSprop(p, RATE, **RMS, momentum=0.75, centered=True),
    ),
    "muon": (
        lambda: g.optim.Muon(RATE, adjust="original"), lambda p: torch.optim.Muon(p, RATE),
    ),
    "muon at rates of AdamW": (
        lambda: g.optim.Muon(RATE, nesterov=False),
        lambda p: torch.optim.Muon(p, RATE, nesterov=False, adjust_lr_fn="match_rms_adamw"),
    ),
}  # fmt: skip


def copy_in_64_bits(tensor):
    return tensor.double().clone()


@pytest.mark.parametrize("name", PAIRS)
def test_steps(name, monkeypatch):
    make, peer = PAIRS[name]
    if name.startswith("muon"):  # which torch computes in 16 bits wherever its parameters are
        monkeypatch.setattr(torch, "bfloat16", torch.float64)
        monkeypatch.setattr(torch.Tensor, "bfloat16", copy_in_64_bits)  # so up to torch 2.14
    x, target = g.input("x", X.shape, "float64"), g.input("target", TARGET.shape, "float64")
    w = g.parameter("w", WEIGHT.shape, "float64")
    program = g.compile(g.mse(g.matmul(x, w, transpose_b=True), target), optimizer=make())
    program.parameters["w"] = WEIGHT
    tensor = torch.tensor(WEIGHT, requires_grad=True)
    optimizer = peer([tensor])
    for _ in range(STEPS):
        program.step(x=X, target=TARGET)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(torch.tensor(X) @ tensor.T, torch.tensor(TARGET)).backward()
        optimizer.step()
        found = program.parameters["w"]
        np.testing.assert_allclose(found, tensor.detach().numpy(), rtol=1e-9, atol=1e-10)
