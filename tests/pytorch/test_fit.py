"""The command graphc fit: its verdict, largest sizes, changes and errors."""

import json
import re
from dataclasses import replace

import pytest
from view.reading import content

import graphc
from graphc.cli import main
from graphc.devices.device import find_device

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphc.byte_sizes import parse_bytes  # noqa: E402
from graphc.devices.device_memory import DeviceMemory  # noqa: E402
from graphc.torch.fit.answer import answer, request_of  # noqa: E402
from graphc.torch.fit.changes import cheapest, least_bytes  # noqa: E402
from graphc.torch.fit.models import from_function  # noqa: E402
from graphc.torch.fit.options import FitOptions  # noqa: E402
from graphc.torch.fit.plans import planned_peaks  # noqa: E402
from graphc.torch.fit.step import predict, with_options  # noqa: E402

MODEL = """
import torch

def build(batch=2, seq=64):
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    module = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    return module, (torch.zeros(batch, seq, 64),)

def fixed():
    return torch.nn.Linear(64, 64), (torch.zeros(8, 64),)

def wrong():
    return 3

def bare():
    return torch.nn.Linear(64, 64), torch.zeros(8, 64)

def loss_third():
    return torch.nn.Linear(64, 64), (torch.zeros(8, 64),), lambda out, x: out.sum()

def text_third():
    return torch.nn.Linear(64, 64), (torch.zeros(8, 64),), "sum"

def text_fourth():
    return torch.nn.Linear(64, 64), (torch.zeros(8, 64),), {}, "sum"

def five():
    return torch.nn.Linear(64, 64), (torch.zeros(8, 64),), {}, None, None

def nothing():
    x = torch.zeros(8, 64)
    return torch.nn.Linear(64, 64), (x, x), {}, lambda out, x: None

def needs(batch):
    return torch.nn.Linear(64, 64), (torch.zeros(batch, 64),)

def reads():
    class Reads(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x
    return Reads(4, 4), (torch.zeros(4, 4),)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    return path


def build(batch=2, seq=64):
    module = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(6)]
    )
    return module, (torch.zeros(batch, seq, 256),)


def request(mebibytes, **sizes):
    memory = DeviceMemory("small", (mebibytes + 8) << 20, mebibytes << 20)
    source = from_function(build, "build")
    return request_of(source, FitOptions(), find_device("t4"), memory, **sizes)


class Attending(torch.nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.qkv, self.out, self.drop = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64), drop

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.drop)
        y = self.out(y.transpose(1, 2).flatten(2))
        return (x + torch.nn.functional.dropout(y, self.drop)).tanh()


def rows_of(make):
    """Bytes of eager torch, of torch.compile and of graphc's plan, on a T4."""
    memory = DeviceMemory("small", 308 << 20, 300 << 20)
    asked = request_of(from_function(make, "make"), FitOptions(), find_device("t4"), memory)
    found = answer("m", asked, plans=True)
    assert not found.plan_error
    return found.eager_bytes, found.planned.aot_eager_bytes, found.planned.planned_bytes


def test_dropout_adds_no_more_than_its_mask_to_any_row():
    """On a CPU, attention with dropout would save 8 MiB of probabilities."""
    x = torch.zeros(8, 256, 64)
    plain, dropped = (rows_of(lambda drop=drop: (Attending(drop), (x,))) for drop in (0.0, 0.1))
    for before, after in zip(plain, dropped, strict=True):
        assert before <= after <= before + 8 * 256 * 64 + 4096


class Gated(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            h = layer(x)
            x = 0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * torch.pow(h, 3))))
        return x.mean()


def test_the_row_of_torch_compile_is_torch_s_partition_by_minimum_cut():
    """The plan recomputes nothing where everything fits; the audit counts the same graphs."""
    module, x = Gated(), torch.zeros(8192, 64)
    audit = graphc.torch.audit(module, (x,), "min-cut")
    _, compiled, planned = rows_of(lambda: (module, (x,)))
    saved = audit.plain_bytes - audit.peak_bytes
    assert planned - compiled == pytest.approx(saved, abs=4096)  # of rounding
    assert saved > 2**20


@pytest.mark.parametrize("axis", ["batch", "seq"])
def test_the_largest_size_fits_and_the_next_does_not(axis):
    asked = request(40, batch=4)
    largest = getattr(answer("m", asked, plans=False), axis)
    for size, fits in ((largest, True), (largest + 1, False)):
        needed = predict(replace(asked, sizes=replace(asked.sizes, **{axis: size}))).needed_bytes
        assert (needed <= asked.memory.usable_bytes) is fits


def test_changes_fit_and_have_the_bytes_of_their_options():
    asked = request(300, batch=512)
    found = answer("m", asked, plans=False)
    assert found.spare_bytes < 0
    assert 1 <= len(found.changes) <= 3
    assert next(found.lines()).startswith("does not fit small: needs ")
    for change in found.changes:
        assert change.prediction.needed_bytes <= asked.memory.usable_bytes


@pytest.mark.parametrize(
    "options",
    [
        {"accumulate": 2},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"optimizer": "sgd"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_plan_of_graphc_is_a_change_that_fits(options):
    """Its peak is that of the plan itself; the update of the optimizer and the allocator add."""
    asked = with_options(request(110, batch=128), **options)
    assert predict(asked).needed_bytes > asked.memory.usable_bytes
    changes = {each.flags: each for each in answer("m", asked, plans=True).changes}
    found = answer("m", with_options(asked, checkpoint="graphc"), plans=False)
    assert 0 <= found.spare_bytes < found.found.needed_bytes
    assert found.found.needed_bytes >= found.planned.planned_bytes
    assert found.found.allocated_bytes == pytest.approx(found.planned.planned_bytes, rel=0.02)
    plan = changes["--checkpoint graphc"].prediction
    assert plan.by_kind_bytes == found.found.by_kind_bytes
    assert "largest batch" not in "".join(found.lines())


@pytest.mark.parametrize(
    ("device", "flags"),
    [("v100", "--autocast float16"), ("t4", "--autocast float16"), ("a100", "--dtype bfloat16")],
)
def test_changes_to_16_bits_are_those_that_the_device_has(device, flags):
    """Compute capability 7.0 and 7.5 have no arithmetic of bfloat16, 8.0 has."""
    asked = replace(request(1024, batch=128), device=find_device(device))
    found = predict(asked)
    asked = replace(asked, memory=request(found.needed_bytes * 9 // 10 >> 20).memory)
    narrow = {each.flags for each in cheapest(asked, found) if "float16" in each.flags}
    assert narrow == {flags}


@pytest.mark.parametrize("given", ["--dtype", "--autocast"])
def test_bfloat16_that_a_gpu_has_not_is_named_and_replaced(capsys, file, tmp_path, given):
    page, note = tmp_path / "fit.html", "t4 has no bfloat16, so torch emulates it slowly; use "
    wanted, own = "--dtype float32 --autocast float16", [f"{file}:build", given, "bf16"]
    _, out, _ = run(capsys, *own, "--device", "t4", "--no-plans", "-o", page)
    assert out.splitlines()[2] == note + wanted
    assert content(page.read_text())["notes"] == [note + wanted]
    code, out, _ = run(capsys, *own, "--batch", 300000, "--device", "t4", "--no-plans", "--json")
    found = json.loads(out)
    assert code == 3
    assert found["notes"] == [note + wanted]
    assert found["changes"]
    assert all(each["options"].startswith(wanted) for each in found["changes"])
    _, out, _ = run(capsys, *own, "--device", "a100", "--no-plans", "--json")
    assert json.loads(out)["notes"] == []


def test_a_fused_update_needs_no_bytes_beside_its_states():
    """The update that is not fused computes on all parameters at once, in as many bytes again."""
    asked = request(1024, batch=1, seq=1)
    each, fused = (
        predict(with_options(asked, optimizer=name)) for name in ("adamw", "adamw-fused")
    )
    assert each.state_bytes == fused.state_bytes
    parameters = each.by_kind_bytes["parameters"]
    saved = each.allocated_bytes - fused.allocated_bytes
    assert saved == pytest.approx(parameters, rel=0.02)


def test_a_fused_update_is_among_the_changes():
    asked = request(1024, batch=1, seq=1)
    found = predict(asked)
    tight = replace(asked, memory=request(found.needed_bytes * 99 // 100 >> 20).memory)
    assert "--optimizer adamw-fused" in {each.flags for each in cheapest(tight, found)}


def test_a_plan_cannot_shrink_the_update():
    """AdamW on a GPU needs the bytes of all parameters again, which no plan avoids."""
    asked = with_options(request(9, batch=1), checkpoint="graphc")
    found = answer("m", asked, plans=False)
    assert found.spare_bytes < 0
    assert found.found.allocated_bytes > found.planned.planned_bytes


def test_no_plan_is_made_if_the_states_alone_do_not_fit():
    found = answer("m", request(5), plans=True)
    assert found.planned is None
    told = "graphc cannot plan this step: parameters, gradients and optimizer states alone need 6.0"
    assert any(line.startswith(told) for line in found.lines())
    assert found.batch == 0


def test_parameters_without_a_gradient_need_no_states():
    class Partly(torch.nn.Linear):
        def __init__(self):
            super().__init__(64, 64)
            self.unused = torch.nn.Linear(1024, 1024)  # 4 MiB

    source = from_function(lambda batch=1: (Partly(), (torch.zeros(batch, 64),)), "partly")
    memory = DeviceMemory("small", 16 << 20, 6 << 20)
    asked = request_of(source, FitOptions(), find_device("t4"), memory)
    found = predict(asked)
    assert not found.recorded.recorder.trains_all
    assert least_bytes(asked, found) < found.allocated_bytes
    assert least_bytes(asked, found) == 4 * (64 * 65 + 1024 * 1025)


def test_steps_on_more_ranks_are_not_recorded_again():
    asked = request(300, batch=8)
    ranks = with_options(asked, shard="zero3", ranks=4)
    anew, reused = predict(ranks), predict(ranks, predict(asked).recorded)
    assert reused.by_kind_bytes == anew.by_kind_bytes
    assert reused.trace == anew.trace


def test_micro_batches_add_no_gradients_to_the_update():
    """Those of the last micro-batch are added to the others, and freed, before the update."""
    asked = with_options(request(64, batch=1), checkpoint="graphc", accumulate=2)
    found = answer("m", asked, plans=False)
    most = max(found.found.eager.update_bytes, found.planned.planned_bytes)
    assert found.found.allocated_bytes == pytest.approx(most, rel=0.02)


def test_a_plan_instead_of_recomputed_blocks_is_not_slowed_by_both():
    asked = with_options(request(110, batch=128), checkpoint="blocks")
    plain = with_options(asked, checkpoint="none")
    blocks, none = (answer("m", each, plans=True).planned for each in (asked, plain))
    seconds = none.prediction.seconds / (1 + none.extra_time)
    assert blocks.prediction.seconds == pytest.approx(seconds * (1 + blocks.extra_time))


def test_a_plan_needs_no_more_bytes_than_recomputed_blocks():
    asked = with_options(request(1000, batch=64), checkpoint="blocks")
    found = answer("m", asked, plans=True)
    assert found.planned.planned_bytes <= found.eager_bytes
    eager, _, planned = list(found.lines())[-3:]
    times = [float(line.partition(", +")[2].partition("%")[0]) for line in (eager, planned)]
    assert 0 < times[1] <= times[0]


def test_a_plan_with_more_bytes_than_eager_torch_names_the_smallest():
    asked = request(1000, batch=64)
    plain = predict(asked)
    planned = planned_peaks(asked, plain, 1 << 20)
    assert planned.least[0] < planned.planned_bytes
    assert planned.extra_time == 0.0
    found = replace(answer("m", asked, plans=False), planned=planned)
    last = list(found.lines())[-1]
    assert re.search(r"was found; the smallest needs [\d.]+ MiB, \+[\d.]+% time\.$", last)


def test_recomputing_blocks_saves_activations_and_takes_time():
    asked = request(80, batch=64)
    blocks = replace(asked, options=replace(asked.options, checkpoint="blocks"))
    plain, recomputed = predict(asked), predict(blocks)
    assert recomputed.by_kind_bytes["activations"] < plain.by_kind_bytes["activations"]
    assert recomputed.seconds > plain.seconds


def run(capsys, *arguments):
    code = main(["fit", *map(str, arguments)])
    return code, *capsys.readouterr()


def test_the_command_prints_a_verdict_first(capsys, file):
    code, out, _ = run(capsys, f"{file}:build", "--device", "t4", "--no-plans")
    assert code == 0
    verdict, assumed, *_ = out.splitlines()
    assert verdict.startswith("fits t4: needs ")
    assert assumed == "a step of batch 1, length 64, dtype float32, optimizer adamw"
    assert "largest batch that fits: " in out
    code, out, _ = run(capsys, f"{file}:build", "--batch=200000", "--device=t4", "--no-plans")
    assert code == 3
    assert out.startswith("does not fit t4: needs ")
    _, out, _ = run(capsys, f"{file}:build", "--device", "24GB", "--no-plans")
    assert out.startswith("fits 24GB (a10): needs ")


def test_a_sequence_whose_length_changes_the_ops_has_a_reason(capsys, tmp_path):
    (tmp_path / "loops.py").write_text(
        "import torch\n"
        "class Loops(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return sum(super(Loops, self).forward(each) for each in x.unbind(1))\n"
        "def build(batch=1, seq=8):\n"
        "    return Loops(4, 4), (torch.zeros(batch, seq, 4),)\n"
    )
    _, out, _ = run(capsys, f"{tmp_path / 'loops.py'}:build", "--no-plans")
    assert "longest sequence that fits: unknown, since the ops of a step depend on it" in out


def test_the_largest_batch_that_is_tried_is_named(capsys, tmp_path):
    (tmp_path / "tiny.py").write_text(
        "import torch\n"
        "def build(batch=1):\n"
        "    x = torch.empty(batch, 1)\n"
        "    return torch.nn.Linear(1, 1), (x, x), {}, torch.nn.functional.mse_loss\n"
    )
    _, out, _ = run(capsys, f"{tmp_path / 'tiny.py'}:build", "--no-plans")
    assert "largest batch that fits: 1,048,576 or more; larger ones are not tried" in out


@pytest.mark.parametrize("short", ["bf16", "fp16", "fp32"])
def test_dtypes_have_short_names(capsys, file, short):
    code, out, _ = run(capsys, f"{file}:build", "--dtype", short, "--no-plans")
    assert code == 0
    dtype = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[short]
    assert f"dtype {dtype}, " in out.splitlines()[1]


def test_a_function_may_need_a_batch(capsys, file):
    code, out, _ = run(capsys, f"{file}:needs", "--no-plans")
    assert code == 0
    assert out.splitlines()[1].startswith("a step of batch 1, ")


@pytest.mark.slow
def test_json_has_the_kinds_and_three_peaks(capsys, file):
    _, out, _ = run(capsys, f"{file}:build", "--device", "16GB", "--json")
    found = json.loads(out)
    kinds = found["by_kind_bytes"]
    context = kinds.pop("CUDA context and driver")
    assert sum(kinds.values()) == found["needed_bytes"]
    assert found["total_bytes"] == found["usable_bytes"] + context
    assert found["planned_bytes"] <= found["aot_eager_bytes"] * 1.01
    assert found["eager_bytes"] > 0


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("{file}:bild", (), "has no function 'bild'"),
        ("{file}:wrong", (), "must return a module and a tuple of arguments"),
        ("{file}:bare", (), "it returned (Linear, Tensor)"),
        ("{file}:loss_third", (), "(x, labels), {}, loss; it returned (Linear, tuple, function)"),
        ("{file}:text_third", (), "it returned (Linear, tuple, str)"),
        ("{file}:text_fourth", (), "it returned (Linear, tuple, dict, str)"),
        ("{file}:nothing", (), "depends on a parameter to train"),
        ("{file}:five", (), "it returned (Linear, tuple, dict, NoneType, NoneType)"),
        ("{file}:build", ("--lora", "16"), "--lora: '16' has no name; write --lora r=16"),
        ("{file}:build", ("--lora", "r=x"), "--lora r must be"),
        ("{file}:build", ("--ranks", "x"), "ranks must be"),
        ("{file}:reads", (), "fails on tensors without data"),
        ("{file}:build", ("--image", 9), "has no parameter image"),
        ("{file}:build", ("--batch", 0), "--batch must be at least 1, got 0"),
        ("{file}:build", ("--dtype", "bfloat61"), "did you mean bfloat16"),
        ("{file}:build", ("--device", "h10"), "h100"),
        ("{file}:build", ("--optimizer", "adamm"), "did you mean adam"),
        ("{file}:build", ("--dtype", "bfloat16", "--autocast", "bfloat16"), "has no effect"),
        ("{file}:build", ("--chunked-loss",), "not a causal language model"),
        (
            "{file}:build",
            ("--checkpoint", "graphc", "--shard", "ddp", "--ranks", 2),
            "omit --shard ddp",
        ),
        ("{file}:build", ("--checkpoint", "graphc", "-o", "page.html"), "omit --checkpoint graphc"),
        ("{file}:build", ("--compile", "--checkpoint", "blocks"), "omit --checkpoint"),
        ("{file}:build", ("--compile", "--no-plans"), "the peaks that --compile asks for"),
        ("{file}:build", ("--checkpoint", "graphc", "--no-plans"), "leaves out the plan"),
        ("{file}:build", ("--attention", "sdpa"), "no effect on"),
        ("nowhere/config.json", (), "is not a configuration"),
    ],
)
def test_wrong_requests_give_one_line(capsys, file, model, options, message):
    try:
        code = main(["fit", *map(str, (model.format(file=file), *options))])
    except SystemExit as left:  # of the parser
        code = left.code
    out, error = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert message in error
    assert error.count("\n") == 1


def test_the_page_shows_the_allocator_in_the_second_step(capsys, file, tmp_path):
    page = tmp_path / "fit.html"
    code, out, _ = run(
        capsys, f"{file}:build", "--device", "t4", "--no-plans", "--json", "-o", page
    )
    found = json.loads(out)
    (model,) = content(page.read_text())["plans"]
    assert code == 0
    assert model["arena_bytes"] == found["needed_bytes"]
    assert model["live_bytes"] >= found["eager_bytes"]
    assert model["heading"] == "training step"
    shown = {name: parse_bytes(name, size) for name, size in model["summary"]}
    parts = [size for name, size in shown.items() if name not in ("peak", "needed")]
    assert shown["needed"] == found["needed_bytes"]
    assert sum(parts) == pytest.approx(shown["needed"], rel=1e-3)
    assert shown["peak"] == pytest.approx(model["live_bytes"], rel=1e-3)
    buffers = model["buffers"]
    ends = [a + b for a, b in zip(buffers["offset"], buffers["bytes"], strict=True)]
    assert max(ends) <= model["arena_bytes"]
    rows = list(zip(buffers["offset"], ends, buffers["first"], buffers["last"], strict=True))
    for at, (begin, end, first, last) in enumerate(rows):
        for low, high, start, stop in rows[at + 1 :]:
            is_apart = end <= low or high <= begin or last <= start or stop <= first
            # A block that is freed may be used again within the same op.
            assert is_apart or last - 1 == start or stop - 1 == first


def test_a_function_needs_no_parameters(capsys, file):
    code, out, _ = run(capsys, f"{file}:fixed", "--device", "t4", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["largest_batch"] is None


@pytest.mark.parametrize("content", ["[]", "3", "null", "[" * 100_000, '{"a": {"__float__": "x"}}'])
def test_damaged_configurations_give_one_line(capsys, tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    code, _, error = run(capsys, tmp_path / "config.json")
    assert code == 2
    assert error.startswith("graphc: ")
    assert error.count("\n") == 1


def test_a_page_is_html(capsys, file):
    code, _, error = run(capsys, f"{file}:build", "-o", "fit.png")
    assert code == 2
    assert "--output fit.png must end in .html" in error


def test_ranks_update_their_share_of_the_states():
    asked = request(300, batch=2)
    alone = predict(asked)
    ranks = [
        predict(replace(asked, options=replace(asked.options, shard="zero3", ranks=count)))
        for count in (2, 8)
    ]
    for count, each in zip((2, 8), ranks, strict=True):
        for kind in ("parameters", "optimizer states"):
            share = alone.by_kind_bytes[kind] / count
            assert each.by_kind_bytes[kind] == pytest.approx(share, rel=0.1, abs=2**16)
        assert each.by_kind_bytes["gradients"] <= alone.by_kind_bytes["gradients"] / count * 1.1
    # The update of a large module on a small batch is its peak, and needs the most workspace.
    assert alone.by_kind_bytes["workspace"] > alone.by_kind_bytes["parameters"] / 2
    assert ranks[1].by_kind_bytes["workspace"] < alone.by_kind_bytes["workspace"]
