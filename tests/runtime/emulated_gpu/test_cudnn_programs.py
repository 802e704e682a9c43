"""Programs on an emulated GPU whose convolutions and attention run by a stand-in for cuDNN."""

import json

import numpy as np
import pytest
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.networks import SEED, bits, fed, fused_gpt2, on_gpu

import graphc as g
from graphc.runtime import bind as binding
from graphc.runtime.gpu.cudnn import Cudnn, CudnnError
from graphc.runtime.gpu.device import Gpu
from graphc.runtime.program import Program


def convolutions(dtype="float64"):
    x, t = g.input("x", (3, 4, 9, 9), dtype), g.input("t", (3,), "int32")
    h = g.relu(g.conv2d(x, 8, 3, padding=1, name="a"))
    h = g.relu(g.conv2d(h, 6, 3, stride=2, groups=2, bias=False, name="b"))
    return g.softmax_cross_entropy(g.linear(g.mean(h, (2, 3)), 4, name="c"), t)


CASES = {
    "attention, bf16": (lambda: fused_gpt2("float32"), {"precision": "bf16"}, 5e-2, 4),
    "attention, recomputed": (
        lambda: fused_gpt2("float32"), {"precision": "bf16", "recompute": "sublinear"}, 5e-2, 4
    ),
    "convolutions": (convolutions, {}, 1e-9, 5),
    "convolutions, float32": (lambda: convolutions("float32"), {}, 1e-4, 5),
}  # fmt: skip


@pytest.mark.parametrize(("network", "options", "tolerance", "least"), CASES.values(), ids=CASES)
def test_steps_equal_the_cpu_program(network, options, tolerance, least, folder, cudnn):
    loss, optimizer = network(), g.optim.AdamW(1e-2)
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    emulated, device = on_gpu(plan, folder, cudnn=cudnn)
    program = Program(g.plan(loss, optimizer=optimizer, **options), SEED)
    for _ in range(3):
        expected, found = program.step(fed(plan)), emulated.step(fed(plan))
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=tolerance)
    for name, found in emulated.states.items():
        expected = program.states[name].astype(np.float64)
        found = found.astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    assert device.counts["cudnn"] >= 3 * least
    assert device.allocations == [plan.arena_bytes]


def trained(plan, folder, cudnn):
    program, device = on_gpu(plan, folder, cudnn=cudnn)
    for step in range(2):
        program.step(fed(plan, step))
    return bits(program), device.counts["cudnn"]


def fused_plan():
    loss = fused_gpt2("float32")
    return g.plan(loss, optimizer=g.optim.AdamW(1e-2), device="cuda", precision="bf16")


def test_a_program_falls_back(folder, cudnn, monkeypatch):
    """Without cuDNN, or an engine that fits, the generated kernels run."""
    plan = fused_plan()
    without, runs = trained(plan, folder, None)
    assert runs == 0
    large = [e for e in fake_cudnn.ENGINES if e.workspace]
    monkeypatch.setattr(fake_cudnn, "ENGINES", large)
    assert trained(plan, folder, cudnn) == (without, 0)
    assert set(cudnn.record["engines"].values()) == {None}


def test_a_record_gives_the_same_bits(folder, cudnn, monkeypatch):
    plan = fused_plan()
    first = trained(plan, folder, cudnn)
    record = json.loads(json.dumps(cudnn.record))
    monkeypatch.setattr(fake_cudnn, "ENGINES", fake_cudnn.ENGINES[::-1])
    again = Cudnn(fake_cudnn, record)
    assert trained(plan, folder, again) == first
    assert again.record == record
    again.close()


def test_a_file_keeps_the_engines(folder, monkeypatch, tmp_path):
    found = Gpu(0, "an emulated H200", 90, 2**37, 2**37, 67e12, 4800e9)
    monkeypatch.setattr(binding, "find_gpu", lambda number: found)
    monkeypatch.setattr(binding, "CudaDevice", lambda *given: EmulatedDevice(folder))
    monkeypatch.setattr(binding, "load_cudnn", lambda: fake_cudnn)
    file = tmp_path / "engines.json"
    options = {"optimizer": g.optim.SGD(0.1), "device": "cuda"}
    one = g.compile(convolutions("float32"), cudnn=file, **options)
    record = json.loads(file.read_text())
    chosen = {engine["engine"] for engine in record["engines"].values() if engine}
    assert chosen
    monkeypatch.setattr(fake_cudnn, "ENGINES", fake_cudnn.ENGINES[::-1])  # another first choice
    other = g.compile(convolutions("float32"), cudnn=file, **options)
    assert json.loads(file.read_text()) == record
    for program in (one, other):
        program.step(fed(program.plan))
    assert bits(one) == bits(other)
    file.write_text("[]")
    with pytest.raises(CudnnError, match="no record of engines"):
        g.compile(convolutions("float32"), cudnn=file, **options)
