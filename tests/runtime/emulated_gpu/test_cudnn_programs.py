"""Programs on an emulated GPU whose convolutions and attention run by a stand-in for cuDNN."""

import json
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.emulated import emulate
from runtime.emulated_gpu.networks import SEED, bits, fed, fused_gpt2, on_gpu
from runtime.emulated_gpu.test_cudnn_engines import serving_packed_operands_alone

import graphc as g
from graphc import Program
from graphc.codegen import cudnn_attention
from graphc.codegen.cudnn_request import packed
from graphc.devices.device import NO_PAIRS, find_device
from graphc.errors import DependencyError
from graphc.models import gpt2
from graphc.runtime import bind as binding
from graphc.runtime.gpu import cudnn as engines
from graphc.runtime.gpu.bind import BoundPlan, bind
from graphc.runtime.gpu.cudnn import Cudnn, CudnnError


def convolutions(dtype="float64"):
    x, t = g.input("x", (3, 4, 9, 9), dtype), g.input("t", (3,), "int32")
    h = g.relu(g.conv2d(x, 8, 3, padding=1, name="a"))
    h = g.relu(g.conv2d(h, 6, 3, stride=2, groups=2, bias=False, name="b"))
    return g.softmax_cross_entropy(g.linear(g.mean(h, (2, 3)), 4, name="c"), t)


def first_layers():
    """An image as it is fed, and filters of one element a channel."""
    x, t = g.input("x", (3, 4, 6, 6)), g.input("t", (3,), "int32")
    h = g.relu(g.conv2d(x, 8, 3, padding=1, name="a"))
    h = g.relu(g.conv2d(h, 6, 1, bias=False, name="b"))
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
def test_steps_equal_the_cpu_program(network, options, tolerance, least, cudnn):
    loss, optimizer = network(), g.optim.AdamW(1e-2)
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    emulated, device = on_gpu(plan, cudnn=cudnn)
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


def trained(plan, cudnn):
    program, device = on_gpu(plan, cudnn=cudnn)
    for step in range(2):
        program.step(fed(plan, step))
    return bits(program), device.counts["cudnn"]


def fused_plan():
    loss = fused_gpt2("float32")
    return g.plan(loss, optimizer=g.optim.AdamW(1e-2), device="cuda", precision="bf16")


def test_a_program_falls_back(cudnn, monkeypatch):
    """Without cuDNN, or an engine that fits, the generated kernels run."""
    plan = fused_plan()
    without, runs = trained(plan, None)
    assert runs == 0
    large = [e for e in fake_cudnn.ENGINES if e.workspace == fake_cudnn.LARGE]
    monkeypatch.setattr(fake_cudnn, "ENGINES", large)
    assert trained(plan, cudnn) == (without, 0)
    assert set(cudnn.record["engines"].values()) == {None}


def test_a_record_gives_the_same_bits(cudnn, monkeypatch):
    plan = fused_plan()
    first = trained(plan, cudnn)
    record = json.loads(json.dumps(cudnn.record))
    monkeypatch.setattr(fake_cudnn, "ENGINES", fake_cudnn.ENGINES[::-1])
    again = Cudnn(fake_cudnn, record)
    assert trained(plan, again) == first
    assert again.record == record
    again.close()


def lies_last(tensor):
    """Whether a map lies channels-last by all its strides, those of axes with one element too."""
    batch, channels, rows, columns = tensor.stride
    return batch >= rows >= columns >= channels == 1


@pytest.mark.parametrize(
    ("options", "tolerance", "calls"),
    [
        ({}, 1e-4, 5),  # of two layers; the first has no gradient of its input
        ({"precision": "bf16"}, 5e-2, 3),  # graphc's products compute the gradients of filters
        ({"precision": "bf16", "streams": 2}, 5e-2, 3),
    ],
)
def test_engines_for_tensor_cores_get_what_they_take(options, tolerance, calls, cudnn, monkeypatch):
    """All operands are channels-last and have one dtype."""
    own = fake_cudnn.pygraph.create_execution_plans

    def plans(graph, heuristics):
        used = (*graph.operands, *graph.results)
        if not all(map(lies_last, used)) or len({tensor.type for tensor in used}) > 1:
            raise fake_cudnn.cudnnGraphNotSupportedError("No valid engine configs")
        own(graph, heuristics)

    monkeypatch.setattr(fake_cudnn.pygraph, "create_execution_plans", plans)
    loss, optimizer = first_layers(), g.optim.Momentum(1e-2)
    planned = {name: given for name, given in options.items() if name != "streams"}
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **planned)
    running = {name: given for name, given in options.items() if name == "streams"}
    emulated, device = on_gpu(plan, cudnn=cudnn, **running)
    program = Program(g.plan(loss, optimizer=optimizer, **planned), SEED)
    for step in range(3):
        expected, found = program.step(fed(plan, step)), emulated.step(fed(plan, step))
        np.testing.assert_allclose(found["loss"], expected["loss"], rtol=tolerance)
    for name, found in emulated.states.items():
        expected = program.states[name]
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    assert device.counts["cudnn"] == 3 * calls


def dense():
    """Convolutions that write parts of concatenations, where strategies differ."""
    x, t = g.input("x", (2, 8, 8, 8)), g.input("t", (2,), "int32")
    parts = [g.conv2d(x, 8, 3, padding=1, name="stem")]
    for number in range(3):
        joined = g.relu(g.concat(parts, 1)) if number else g.relu(parts[0])
        parts.append(g.conv2d(joined, 8, 3, padding=1, name=f"layer{number}"))
    return g.softmax_cross_entropy(g.linear(g.mean(g.concat(parts, 1), (2, 3)), 4), t)


def test_all_strategies_have_the_same_engines(cudnn, monkeypatch):
    """Also where the first choice of a library depends on how operands lie."""
    own = fake_cudnn.pygraph.create_execution_plans

    def plans(graph, heuristics):
        own(graph, heuristics)
        used = (*graph.operands, *graph.results)
        reach = [max(n * s for n, s in zip(t.dim, t.stride, strict=True)) for t in used]
        if any(far != math.prod(t.dim) for far, t in zip(reach, used, strict=True)):
            graph.plans.reverse()

    monkeypatch.setattr(fake_cudnn.pygraph, "create_execution_plans", plans)
    lying, engines_of = set(), []
    for options in (
        {"allocate": "none"}, {"allocate": "inplace"}, {"allocate": "sharing"}, {},
        {"recompute": "sublinear"},
    ):  # fmt: skip
        plan = g.plan(dense(), optimizer=g.optim.SGD(0.1), device="cuda", **options)
        calls = [c for work in bind(plan, 0x7F00_0000_0000, cudnn=cudnn) for c in work.calls]
        served = [call.plan for call in calls if isinstance(call, BoundPlan)]
        lying.add(frozenset(engines.shown(each.request) for each in served))
        engines_of.append({(engines.shown(packed(p.request)), p.engine) for p in served})
    assert len(lying) > 1
    assert all(found == engines_of[0] for found in engines_of)


def attention_by(cudnn, plan):
    """The kinds of the requests for attention that cuDNN serves in a plan."""
    works = bind(plan, 0x7F00_0000_0000, cudnn=cudnn)
    calls = [call for work in works for call in work.calls if isinstance(call, BoundPlan)]
    return [call.plan.request.kind for call in calls]


def test_a_plan_has_room_for_the_gradient_of_attention(cudnn, monkeypatch):
    """It grows with the number of positions, as the frontend does it where it is told the limit;
    what an engine of cuDNN itself adds is not known here."""
    sizes = {"layers": 1, "width": 32, "heads": 2, "batch": 1, "vocab": 11, "drop": 0.0}
    rooms = []
    for length in (256, 512):
        loss = gpt2(**sizes, seq_len=length, positions=length, attention="fused")
        plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="cuda", precision="bf16")
        assert attention_by(cudnn, plan) == ["forward", "backward"]
        node = next(n for n in plan.graph.nodes if n.op.name == "attention_gradient")
        rooms.append(plan.workspaces[node].bytes)
    assert rooms[1] < 2 * rooms[0]
    monkeypatch.setattr(engines, "LIMIT", "ANOTHER_NAME")
    assert attention_by(Cudnn(fake_cudnn), plan) == ["forward"]
    assert "ANOTHER_NAME" not in os.environ


def test_a_report_counts_calls_and_names_what_is_declined(cudnn, monkeypatch):
    plan = g.plan(first_layers(), optimizer=g.optim.SGD(0.1), device="cuda")
    served, _ = on_gpu(plan, cudnn=cudnn)
    monkeypatch.setattr(fake_cudnn, "ENGINES", [])
    declined, _ = on_gpu(plan, cudnn=Cudnn(fake_cudnn))
    assert (served.report.calls["cudnn"], served.report.declined) == (5, ())
    assert declined.report.calls["cudnn"] == 0
    assert declined.report.calls["cublaslt"] >= served.report.calls["cublaslt"] + 5
    kinds = [text.split()[1] for text in declined.report.declined]
    assert sorted(kinds) == ["dgrad", "fprop", "fprop", "wgrad", "wgrad"]
    products = [n for n in plan.graph.nodes if n.op.name == "linear"]
    assert served.report.calls["cublaslt"] >= 3 * len(products)


def test_cudnn_is_used_where_it_is_installed(monkeypatch):
    emulate(monkeypatch)

    def runs(**options):
        program = g.compile(first_layers(), optimizer=g.optim.SGD(0.1), device="cuda", **options)
        program.step(fed(program.plan))
        declined.append(program.report.declined)
        return program._backend._accelerator.counts["cudnn"]

    declined = []
    monkeypatch.setattr(binding, "load_cudnn", lambda: fake_cudnn)
    assert (runs(), runs(cudnn=True), runs(cudnn=False)) == (5, 5, 0)

    def no_handle():
        raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(fake_cudnn, "create_handle", no_handle)
    assert (runs(), runs(cudnn=False)) == (0, 0)
    assert len(declined[-2]) == 1
    assert "cannot be used on this GPU" in declined[-2][0]
    assert declined[:-2] == [()] * 3
    assert declined[-1] == ()
    with pytest.raises(DependencyError, match=r"cannot be used on this GPU.*NOT_INITIALIZED"):
        runs(cudnn=True)


def test_a_file_keeps_the_engines(monkeypatch, tmp_path):
    emulate(monkeypatch)
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
    with pytest.raises(CudnnError, match="not a record of engines"):
        g.compile(convolutions("float32"), cudnn=file, **options)


def test_concatenations_ask_for_engines_that_serve_parts(cudnn, monkeypatch):
    """An engine for packed operands alone would give strategies different kernels."""
    serving_packed_operands_alone(monkeypatch, 7)
    runs = []
    for options in ({"allocate": "none"}, {}, {"recompute": "sublinear"}):
        plan = g.plan(dense(), optimizer=g.optim.SGD(0.1), device="cuda", **options)
        runs.append(trained(plan, cudnn))
    assert all(found == runs[0][0] for found, _ in runs)
    numbers = {e["engine"] for e in cudnn.record["engines"].values()}
    assert numbers == {9}


def attention_plan(version, length=256, batch=1, profile="h200"):
    sizes = {"layers": 1, "width": 32, "heads": 2, "batch": batch, "vocab": 11, "drop": 0.0}
    loss = gpt2(**sizes, seq_len=length, positions=length, attention="fused")
    device = replace(find_device(profile), cudnn_version=version)
    return g.plan(loss, optimizer=g.optim.SGD(0.1), device=device, precision="bf16")


def test_earlier_versions_get_room_for_the_scores_of_all_pairs(cudnn, monkeypatch):
    """Without the variable, the stand-in keeps them, as cuDNN before 9.25 does."""
    monkeypatch.setattr(engines, "LIMIT", "ANOTHER_NAME")
    assert attention_by(cudnn, attention_plan(92_500)) == ["forward"]
    assert attention_by(cudnn, attention_plan(91_900)) == ["forward", "backward"]


@pytest.mark.parametrize("profile", ["a100", "rtx-4090", "rtx-5090"])
@pytest.mark.parametrize("version", [0, 91_900, 92_800])
def test_other_architectures_keep_the_scores_of_all_pairs(cudnn, monkeypatch, profile, version):
    monkeypatch.setattr(engines, "LIMIT", "ANOTHER_NAME")
    assert attention_by(cudnn, attention_plan(version, profile=profile)) == ["forward", "backward"]


def test_no_scores_are_reserved_without_cudnn_or_an_order_of_sums():
    found = attention_plan(NO_PAIRS, profile="a100")
    assert plan_bytes(found) < plan_bytes(attention_plan(0, profile="a100"))


def test_scores_of_all_pairs_are_reserved_up_to_a_limit(cudnn, monkeypatch):
    """Beyond it the request is reported; an engine that needs no order of sums serves it."""
    monkeypatch.setattr(engines, "LIMIT", "ANOTHER_NAME")
    monkeypatch.setattr(cudnn_attention, "MOST_PAIR_BYTES", 2 * 256 * 256 * 2 - 1)
    plan = attention_plan(91_900)
    assert attention_by(cudnn, plan) == ["forward"]
    program, _ = on_gpu(plan, cudnn=cudnn)
    assert [text.split()[:2] for text in program.report.declined] == [["attention", "backward"]]
    free = Cudnn(fake_cudnn, deterministic=False)
    assert attention_by(free, plan) == ["forward", "backward"]


def test_the_version_is_kept_in_plan_files(tmp_path):
    plan = attention_plan(91_900)
    g.save_plan(plan, tmp_path / "plan.json")
    assert g.load_plan(tmp_path / "plan.json").device == plan.device
    assert plan_bytes(plan) > plan_bytes(attention_plan(0)) == plan_bytes(attention_plan(92_500))


def plan_bytes(plan):
    node = next(n for n in plan.graph.nodes if n.op.name == "attention_gradient")
    return plan.workspaces[node].bytes
