"""The modelled step of a plan for a GPU: closed forms of single calls, and what it splits into."""

import json

import pytest

import graphc as g
from graphc.cli import main
from graphc.devices.device import find_device
from graphc.models import gpt2, resnet
from graphc.runtime.gpu.bind import bind
from graphc.runtime.gpu.step_model import KINDS, LAUNCH_SECONDS, model_step

H200 = find_device("h200")
MOVED = H200.bytes_per_second * 0.85


def modelled(value, precision="fp32", **options):
    plan = g.plan(outputs=[value], device="h200", precision=precision)
    return model_step(plan, **options)


@pytest.mark.parametrize(
    ("dtype", "precision", "rate"),
    [
        ("float32", "fp32", 67e12),
        ("float32", "tf32", 494e12),
        ("bfloat16", "fp32", 989e12),
        ("float64", "fp32", 67e12),
    ],
)
def test_a_large_product_takes_its_flops_at_the_rate_of_its_dtype(dtype, precision, rate):
    a, b = (g.input(name, (2048, 2048), dtype) for name in "ab")
    found = modelled(g.matmul(a, b), precision)
    assert found.by_kind["products"] == pytest.approx(2 * 2048**3 / (0.65 * rate))
    assert found.by_kind["launches"] == LAUNCH_SECONDS
    assert found.seconds == pytest.approx(found.by_kind["products"] + LAUNCH_SECONDS)
    assert [(time.op, time.nodes, time.calls) for time in found.by_op] == [("matmul", 1, 1)]


def test_a_small_product_takes_its_bytes():
    found = modelled(g.matmul(g.input("a", (64, 8192)), g.input("b", (8192, 1))))
    assert found.by_kind["products"] == pytest.approx(4 * (64 * 8192 + 8192 + 64) / MOVED)


def test_a_16_bit_product_of_odd_inner_extent_is_slow():
    """On an H100 those of a vocabulary of 50,257 reached a tenth of the peak."""
    times = []
    for width in (1000, 1001):
        a, b = g.input("a", (4096, width), "bfloat16"), g.input("b", (width, 4096), "bfloat16")
        times.append(modelled(g.matmul(a, b)).by_kind["products"])
    assert times[1] / times[0] == pytest.approx(0.65 / 0.1, rel=0.01)


def test_an_elementwise_kernel_takes_the_bytes_that_it_reads_and_writes():
    a, b = g.input("a", (1 << 20,)), g.input("b", (1 << 20,))
    found = modelled(a + b)
    assert found.by_kind["other kernels"] == pytest.approx(3 * 4 * 2**20 / MOVED)


@pytest.mark.parametrize("network", [gpt2, resnet])
def test_kinds_and_ops_sum_to_the_step(network):
    sizes = {"seq_len": 64, "layers": 2} if network is gpt2 else {"image": 64, "depth": 50}
    plan = g.plan(network(batch=2, **sizes), optimizer=g.optim.Adam(1e-3), device="h200")
    for with_cudnn in (False, True):
        found = model_step(plan, with_cudnn)
        assert tuple(found.by_kind) == KINDS
        assert sum(time.seconds for time in found.by_op) == pytest.approx(found.seconds)
        assert sum(time.calls for time in found.by_op) == found.calls
        assert found.by_kind["launches"] == pytest.approx(found.calls * LAUNCH_SECONDS)
        seconds = [time.seconds for time in found.by_op]
        assert seconds == sorted(seconds, reverse=True)
    works = bind(plan, 0x7F00_0000_0000)
    assert model_step(plan, False).calls == sum(len(work.calls) for work in works)


def test_cudnn_takes_convolutions_and_attention():
    loss = gpt2(layers=1, width=64, heads=2, seq_len=256, batch=2, vocab=100, drop=0.0,
                attention="fused")  # fmt: skip
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="h200", precision="bf16")
    node = next(n for n in plan.graph.nodes if n.op.name == "attention_gradient")
    served, own = model_step(plan), model_step(plan, False)
    assert served.by_kind["attention"] < own.by_kind["attention"]
    calls = {time.op: time.calls for time in served.by_op}
    assert calls["attention_gradient"] == 1
    flops = sum(n.op.cost(n).flops for n in plan.graph.nodes if n.op.name.startswith("attention"))
    assert served.by_kind["attention"] >= flops / (0.4 * 989e12)
    assert node.op.cost(node).flops < flops


def test_the_command_prints_the_model(capsys):
    given = ["plan", "mlp", "layers=2", "hidden=64", "--optimizer", "sgd"]
    main([*given, "--device", "h200", "--json"])
    found = json.loads(capsys.readouterr().out)["modelled_step"]["cudnn"]
    main([*given, "--device", "h200"])
    printed = capsys.readouterr().out
    assert f"Modelled step on the h200, in {found['calls']} calls:" in printed
    assert f"launches {found['seconds_by_kind']['launches'] * 1e3:.2f} ms" in printed
    assert f"{found['by_op'][0]['op']}, {found['by_op'][0]['nodes']} nodes" in printed
    main([*given, "--json"])
    assert "modelled_step" not in json.loads(capsys.readouterr().out)


def test_seconds_by_step_add_up():
    found = modelled(g.softmax(g.relu(g.input("x", (2048, 2048)))))
    assert sum(found.by_step.values()) == pytest.approx(found.seconds)
    assert sorted(found.by_step) == list(range(len(found.by_step)))
