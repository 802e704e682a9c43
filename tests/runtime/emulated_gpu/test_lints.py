"""What makes plans for a GPU slow: each rule fires where it should, and all that the zoo has is
known, with its cause."""

import functools

import pytest

import graphc as g
from graphc.codegen import target
from graphc.models import MODELS, gpt2
from graphc.runtime.gpu.lints import findings


def found(plan, **options):
    return {(each.rule, each.op) for each in findings(plan, **options)}


def training(network, **options):
    return g.plan(network, optimizer=g.optim.SGD(0.1), device="cuda", **options)


def small_gpt2(**options):
    return gpt2(layers=1, width=64, heads=8, seq_len=128, batch=8, vocab=1001, drop=0.0, **options)


def test_rows_that_are_not_padded_are_found(monkeypatch):
    assert ("rows", "matmul") not in found(training(small_gpt2(), precision="bf16"))
    monkeypatch.setattr(target.CudaTarget, "pads_rows", False)
    plan = training(small_gpt2(), precision="bf16")
    rows = [each for each in findings(plan) if each.rule == "rows"]
    assert rows
    assert all("1001 elements apart" in each.what for each in rows)
    assert not any(rule == "rows" for rule, _ in found(training(small_gpt2())))  # float32


def test_a_loop_over_heads_is_found():
    assert ("products", "matmul") in found(training(small_gpt2(attention="composed")))
    assert ("products", "matmul") not in found(training(small_gpt2()))


def test_passes_over_the_operands_are_counted():
    """The statistics of channels-last maps take launches of their own."""
    x = g.conv2d(g.input("x", (16, 8, 32, 32)), 64, 3, padding=1)
    assert ("bytes", "batch_norm") in found(training(g.mean(g.batch_norm(x))))
    assert not any(rule == "bytes" for rule, _ in found(training(g.mean(g.relu(x) * x))))


def test_less_room_than_a_product_wants_is_found(monkeypatch):
    plan = training(small_gpt2())
    assert not any(rule == "workspace" for rule, _ in found(plan))
    monkeypatch.setattr("graphc.runtime.gpu.lints.product_workspace_bytes", lambda gemm: 2**25)
    assert any(rule == "workspace" for rule, _ in found(plan))


def test_launches_of_a_small_step_are_found():
    (finding,) = [f for f in findings(training(small_gpt2())) if f.rule == "launches"]
    assert (finding.node, finding.op) == ("", "")


UNFOLDED = "a row is an unfolded window of few channels, 147 elements; cuDNN has no such product"
SHORT = "rows of fewer than 128 bytes are not padded: of 10 classes, or of 50 inputs"
TWICE = "a map is read for its mean, for its deviation and for y: one sum of both would cancel"
HEADS = "batch and heads of a projection have no common stride; attention='fused' needs none"
COMPOSED = {
    f"{name}, composed": functools.partial(MODELS[name], attention="composed")
    for name in ("bert", "vit")
}
NETWORKS = {**MODELS, **COMPOSED}
CAUSES = {
    ("products", "matmul"): ({*COMPOSED}, HEADS),
    ("products", "scaled_matmul"): ({*COMPOSED}, HEADS),
    ("bytes", "batch_norm"): (
        {"densenet121", "inception_v3", "mobilenet_v2", "preact_resnet", "resnet", "unet"}, TWICE
    ),
    ("rows", "linear"): ({"mlp", "preact_resnet"}, SHORT),
    ("rows", "matmul"): ({"lstm", "mlp", "preact_resnet"}, SHORT),
    ("rows", "product_with_sums"): ({"mlp", "preact_resnet"}, SHORT),
    ("rows", "conv2d"): (
        {"densenet121", "inception_v3", "mobilenet_v2", "preact_resnet", "resnet", "unet", "vgg16",
         "vit", "vit, composed"},
        UNFOLDED,
    ),
    ("rows", "conv2d_input_gradient"): ({"unet"}, UNFOLDED),
    ("rows", "conv2d_weight_gradient"): ({"unet"}, UNFOLDED),
    ("launches", ""): (
        {"bert", "densenet121", "inception_v3", "lstm", "mlp", "mobilenet_v2", "preact_resnet",
         "resnet", "two_tower", "unet", "vit", *COMPOSED},
        "at the usual batch of the zoo a step is short for an H200",
    ),
}  # fmt: skip
"""Rule and op → networks of the zoo, at their usual sizes, and why it is so."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "recompute"),
    [("fp32", "none"), ("tf32", "sublinear"), ("bf16", "none"), ("fp16", "sublinear")],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_all_findings_of_the_zoo_are_known(name, precision, recompute):
    plan = training(NETWORKS[name](), precision=precision, recompute=recompute, reorder=False)
    for with_cudnn in (True, False):
        keys = found(plan, with_cudnn=with_cudnn)
        assert not {key for key in keys if name not in CAUSES.get(key, ((), ""))[0]}
        by_cudnn = {("rows", "conv2d"), ("rows", "conv2d_input_gradient")}
        assert not with_cudnn or not by_cudnn & keys
