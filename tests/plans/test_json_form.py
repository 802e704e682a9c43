"""Memory plans as JSON: round trips, tampering, damaged files. The oracle runs without any plan."""

import json
import os
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties.oracle import run_plain
from properties.strategies import OPTIMIZERS, examples, networks
from properties.test_plans import bits

import graphc as g
from graphc.errors import GraphcError, PlanError, PlanFileError
from graphc.models import MODELS
from graphc.plans.file import checked_plan
from graphc.plans.json_form import checksum
from graphc.plans.memory_plan import ALLOCATE, RECOMPUTE, check_alignment

RNG = np.random.default_rng(0)
FEEDS = [
    {"x": RNG.standard_normal((4, 16)).astype(np.float32), "t": RNG.integers(0, 6, 4, np.int32)}
    for _ in range(2)
]


def network():
    """Views with strides, a copied node, dropout, a default, something kept, two outputs."""
    x, t = g.input("x", (4, 16)), g.input("t", (4,), "int32")
    h = x
    for i in range(3):
        with g.scope(f"layer{i}"), g.mirror(1):
            h = g.tanh(g.linear(h, 16))
    left, right = g.split(g.dropout(g.keep(h), 0.25), 2, axis=1)
    logits = g.linear(g.add(g.transpose(g.transpose(left)[1:7]), right[:, 1:7]), 6, name="head")
    return g.softmax_cross_entropy(logits, t), {"logits": logits}


def planned(recompute="mirror", **options):
    loss, outputs = network()
    optimizer = g.optim.Adam(g.optim.Schedule(0.01, steps=9))
    return g.plan(loss, outputs=outputs, optimizer=optimizer, recompute=recompute, **options)


@pytest.fixture(scope="module")
def plan():
    return planned()


@pytest.fixture(scope="module")
def text(plan):
    return Text(plan.to_json())


class Text(str):
    """Long; hypothesis prints it with every example that fails."""

    __slots__ = ()

    def __repr__(self):
        return "text of the plan"


def sealed(content):
    """The content as a text, with the checksum that belongs to it."""
    return json.dumps({**content, "sha256": checksum(content)})


def assert_same_plan(found, wanted):
    """All that a plan says, value by value and node by node."""
    values = dict(zip(wanted.graph.values, found.graph.values, strict=True))
    nodes = dict(zip(wanted.graph.nodes, found.graph.nodes, strict=True))
    for old, new in nodes.items():
        for name in ("op", "attributes", "output_types", "scope", "phase", "mirror", "segment",
                     "level"):  # fmt: skip
            assert getattr(new, name) == getattr(old, name), (name, old)
        assert new.inputs == tuple(values[value] for value in old.inputs)
        assert new.copy_of is (old.copy_of and nodes[old.copy_of])
    for old, new in values.items():
        assert (type(new), new.type, new.index) == (type(old), old.type, old.index)
        for name in ("name", "default", "initial", "role", "trainable"):
            assert getattr(new, name, None) == getattr(old, name, None)
        placement = wanted.placements[old]
        over = None if placement.over is None else values[placement.over]
        assert found.placements[new] == replace(placement, over=over)
    assert list(found.placements) == list(found.graph.values)
    assert list(found.graph.outputs.items()) == [
        (name, values[value]) for name, value in wanted.graph.outputs.items()
    ]
    assert found.graph.kept == {values[v] for v in wanted.graph.kept if v in values}
    assert found.workspaces == {nodes[node]: b for node, b in wanted.workspaces.items()}
    for name in ("buffers", "strategy_bytes", "recomputation", "certificate", "settings", "device",
                 "alignment", "recompute", "allocate", "arena_bytes", "feature_map_bytes",
                 "planning_seconds"):  # fmt: skip
        assert getattr(found, name) == getattr(wanted, name), name


def assert_round_trip(wanted):
    text = wanted.to_json()
    found = checked_plan(text)
    assert found.to_json() == text
    assert str(found) == str(wanted)
    assert_same_plan(found, wanted)


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("allocate", ALLOCATE)
def test_round_trip_under_every_strategy(recompute, allocate):
    assert_round_trip(planned(recompute, allocate=allocate))


@pytest.mark.parametrize(
    "options",
    [
        {"alignment": 64},
        {"precision": "bf16", "accumulate": 2},
        {"precision": "fp16", "clip_norm": 1.0},
        {"recompute": "none", "max_extra_flops": 0.2},
        {"roofline": "h100"},
    ],
)
def test_round_trip_of_every_option(options):
    assert_round_trip(planned(**options))


def test_round_trip_of_plans_without_training():
    x = g.input("x", (2, 3))
    for outputs in ([x], [g.tanh(x), x], [g.parameter("w", (3,)), g.transpose(x)]):
        assert_round_trip(g.plan(outputs=outputs))


SMALL = {
    "mlp": {"layers": 3}, "lstm": {"seq_len": 3, "layers": 2, "hidden": 16},
    "preact_resnet": {"depth": 11}, "gpt2": {"layers": 1, "width": 16, "heads": 2, "seq_len": 4},
    "unet": {"width": 4, "depth": 2, "image": 16},
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("recompute", ["none", "sublinear"])
def test_round_trip_of_networks(name, recompute):
    loss = MODELS[name](batch=2, **SMALL[name])
    assert_round_trip(g.plan(loss, optimizer=g.optim.Momentum(), recompute=recompute))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("recompute", RECOMPUTE)
def test_round_trip_of_the_zoo(name, recompute):
    loss = MODELS[name](batch=1)
    for allocate in ALLOCATE:
        assert_round_trip(
            g.plan(loss, optimizer=g.optim.Adam(), recompute=recompute, allocate=allocate)
        )


@examples(40)
@given(networks(), st.sampled_from(OPTIMIZERS), st.sampled_from(RECOMPUTE))
def test_round_trip_of_random_networks(network, optimizer, recompute):
    assert_round_trip(
        g.plan(network.loss, outputs=network.outputs, optimizer=optimizer, recompute=recompute)
    )


def test_the_same_network_gives_the_same_bytes_but_for_the_last_line(text):
    again = planned().to_json()
    assert again.splitlines()[:-2] == text.splitlines()[:-2]
    assert again.splitlines()[-2].startswith('"planning_seconds": ')


def test_a_loaded_program_steps_to_the_same_bits(plan, tmp_path):
    g.save_plan(plan, tmp_path / "plan.json")
    programs = [g.Program(p, seed=5) for p in (plan, g.load_plan(tmp_path / "plan.json"))]
    wanted, states = run_plain(plan.graph, FEEDS, seed=5)
    for program in programs:
        for feed, outputs in zip(FEEDS, wanted, strict=True):
            found = program.step(feed)
            assert {k: bits(v) for k, v in found.items()} == {
                k: bits(v) for k, v in outputs.items()
            }
        assert {k: bits(v) for k, v in program.states.items()} == {
            k: bits(v) for k, v in states.items()
        }


# --- tampering: a checksum that fits, so that only the checks of meaning are left ---


def tampered(text, change):
    content = json.loads(text)
    change(content)
    return sealed(content)


def place_of(content, name):
    return content["buffers"][content["placements"][name]["buffer"]]


def test_a_tampered_offset_is_caught_with_the_values(text):
    def change(content):
        place_of(content, "%0")["offset"] = place_of(content, "@layer1/weight")["offset"]

    with pytest.raises(PlanError, match="@layer1/weight") as error:
        checked_plan(tampered(text, change))
    assert error.value.culprits[0] == "@layer1/weight"


def test_a_swap_of_two_offsets_is_caught_with_the_values(plan, text):
    """Two buffers of one size that are alive at once, one then overwritten by the other."""
    first, second = plan.placements[plan.graph.nodes[1].output], plan.graph.nodes[3].output

    def change(content):
        a = content["buffers"][first.buffer]
        content["buffers"][plan.placements[second].buffer]["offset"] = a["offset"]

    with pytest.raises(PlanError, match=r"overwrit|read") as error:
        checked_plan(tampered(text, change))
    assert error.value.culprits


FIGURES = {
    "arena_bytes": lambda c: c.update(arena_bytes=c["arena_bytes"] + 256),
    "too small an arena": lambda c: c.update(arena_bytes=c["arena_bytes"] - 256),
    "this strategy": lambda c: c["strategy_bytes"].update(packed=c["arena_bytes"] + 256),
    "another strategy": lambda c: c["strategy_bytes"].update(sharing=256),
    "feature maps above": lambda c: c.update(feature_map_bytes=2**40),
    "feature maps below": lambda c: c.update(feature_map_bytes=0),
    "copies": lambda c: c["recomputation"].update(nodes=c["recomputation"]["nodes"] + 1),
    "bound": lambda c: c.update(
        certificate={"goal": "", "bound_bytes": c["arena_bytes"] + 1, "extra_time_bound": 0.0}
    ),
    "kind": lambda c: place_of(c, "%0").update(kind="gradient"),
    "input as state": lambda c: place_of(c, "%x").update(kind="state"),
    "too long": lambda c: place_of(c, "%0")["lifetime"].__setitem__(
        1, place_of(c, "%0")["lifetime"][1] + 1
    ),
    "too short": lambda c: place_of(c, "%0")["lifetime"].__setitem__(
        1, place_of(c, "%0")["lifetime"][1] - 1
    ),
    "too early": lambda c: place_of(c, "%2")["lifetime"].__setitem__(0, 0),
    "bytes": lambda c: place_of(c, "%0").update(bytes=place_of(c, "%0")["bytes"] - 4),
    "more bytes": lambda c: place_of(c, "%43").update(bytes=2048),
    "computed as a view": lambda c: next(
        p for p in c["placements"].values() if p["how"] == "over"
    ).update(how="view"),
    "strides": lambda c: c["placements"]["%0"].update(strides=[0, 0]),
    "origin": lambda c: c["placements"]["@layer0/weight"].update(how="new"),
    "over": lambda c: next(p for p in c["placements"].values() if p["how"] == "over").update(
        over="%x"
    ),
    "offset inside": lambda c: c["placements"]["@layer0/bias"].update(offset=2),
    "small workspace": lambda c: c["buffers"][c["workspaces"][0]["buffer"]].update(bytes=1),
    "large workspace": lambda c: c["buffers"][c["workspaces"][0]["buffer"]].update(
        bytes=c["buffers"][c["workspaces"][0]["buffer"]]["bytes"] + 1
    ),
    "no workspace": lambda c: c["workspaces"].pop(0),
    "alignment": lambda c: c.update(alignment=512),
    "scratch": lambda c: c["buffers"].append(
        {"kind": "workspace", "offset": 0, "bytes": 256, "lifetime": [0, 1]}
    ),
    "no value": lambda c: c["buffers"].append(
        {"kind": "gradient", "offset": 0, "bytes": 256, "lifetime": [0, 1]}
    ),
    "another buffer": lambda c: c["placements"]["%0"].update(
        buffer=c["placements"]["@head/weight"]["buffer"]
    ),
    "moved view": lambda c: next(
        p for p in c["placements"].values() if p["strides"] and len(p["strides"]) == 2
    )["strides"].reverse(),
}


@pytest.mark.parametrize("name", FIGURES)
def test_layout_and_figures_that_lie_are_caught(text, name):
    with pytest.raises(PlanError):
        checked_plan(tampered(text, FIGURES[name]))


def test_what_nothing_else_proves_is_held_by_the_checksum(text):
    for change in (
        lambda c: c["settings"].update(optimizer="SGD"),
        lambda c: c["strategy_bytes"].update(sharing=c["strategy_bytes"]["sharing"] + 256),
        lambda c: c["recomputation"].update(extra_time_fraction=0.125),
        lambda c: c["device"].update(name="gpu"),
    ):
        content = json.loads(text)
        change(content)
        with pytest.raises(PlanFileError, match="changed after it was written"):
            checked_plan(json.dumps(content))


STRUCTURE = {
    "buffers[3].offset": lambda c: c["buffers"][3].update(offset="0"),
    "buffers[3].bytes": lambda c: c["buffers"][3].update(bytes=0),
    "buffers[3].kind": lambda c: c["buffers"][3].update(kind="heap"),
    "buffers[3].lifetime": lambda c: c["buffers"][3].update(lifetime=[0, 1, 2]),
    "buffers[3].lifetime[1]": lambda c: c["buffers"][3].update(lifetime=[2, 2]),
    "buffers[3].lifetime[0]": lambda c: c["buffers"][3].update(lifetime=[10**9, 2]),
    "buffers[3]: the key 'offset'": lambda c: c["buffers"][3].pop("offset"),
    "placements['%0'].buffer": lambda c: c["placements"]["%0"].update(buffer=10**6),
    "placements['%0'].over": lambda c: c["placements"]["%0"].update(over="%gone"),
    "placements['%0'].strides": lambda c: c["placements"]["%0"].update(strides=[4]),
    "placements['%0'].how": lambda c: c["placements"]["%0"].update(how=["new"]),
    "placements: a place for the value '%0'": lambda c: c["placements"].pop("%0"),
    "placements: the values are": lambda c: c["placements"].update({"%z": {}}),
    "arena_bytes": lambda c: c.update(arena_bytes=2**80),
    "feature_map_bytes": lambda c: c.update(feature_map_bytes=-1),
    "strategy_bytes": lambda c: c["strategy_bytes"].pop("none"),
    "alignment": lambda c: c.update(alignment=100),
    "recompute": lambda c: c.update(recompute="all"),
    "allocate": lambda c: c.update(allocate=None),
    "device.flops_per_second": lambda c: c["device"].update(flops_per_second=0),
    "device: the keys are": lambda c: c["device"].update(cores=2),
    "settings.optimizer": lambda c: c["settings"].update(optimizer=[]),
    "certificate": lambda c: c.update(certificate=[]),
    "recomputation.extra_time_fraction": lambda c: c["recomputation"].update(
        extra_time_fraction=True
    ),
    "planning_seconds": lambda c: c.update(planning_seconds=None),
    "workspaces[0].buffer": lambda c: c["workspaces"][0].update(buffer=0),
    "workspaces[0].step": lambda c: c["workspaces"][0].update(step=10**6),
    "graph[2]: one line": lambda c: c["graph"].__setitem__(2, "a\nb"),
    "graph[2]: a text": lambda c: c["graph"].__setitem__(2, 7),
    "graph: line 4: expected": lambda c: c["graph"].__setitem__(3, "import os"),
    "the file: the keys are": lambda c: c.update(pickle="gASV"),
    "the file: the key 'graph'": lambda c: c.pop("graph"),
    "format": lambda c: c.update(format="pickle"),
}


@pytest.mark.parametrize("where", STRUCTURE)
def test_structure_faults_say_where(text, where):
    with pytest.raises(PlanFileError) as error:
        checked_plan(tampered(text, STRUCTURE[where]))
    assert str(error.value).startswith(where)
    assert "graphc plan MODEL --output" in str(error.value) or where.startswith("graph: ")


@pytest.mark.parametrize("version", [0, 2, "1", None, 1.0, True])
def test_another_version_says_which_is_given_and_which_is_read(text, version):
    with pytest.raises(PlanFileError, match=r"reads version 1 .*got .*plan again") as error:
        checked_plan(tampered(text, lambda c: c.update(version=version)))
    assert repr(version) in str(error.value)


LINES = [
    "%x: f32[4,16] = input() {default='a'}",
    "%x: f32[" + "9" * 5000 + "] = input()",
    "%x: f32[" + ",".join(["1"] * 70) + "] = input()",
    "%x: f32[999999999999999999,999999999999999999] = input()",
    "@w: f32[4] = parameter() {trainable='no'}",
    "@w: f32[4] = parameter() {initial='seed', scale=0.0}",
    "@w: f32[4] = parameter() {initial=['constant'], scale=0.0}",
    "@w: f32[4] = parameter() {code=__import__('os')}",
    "%y: f32[] = full() {value=" + "-" * 100_000 + "1}",
    "%y: f32[] = full() {value=" + "(" * 5000 + "1" + ")" * 5000 + "}",
    "%y: f32[] = full() {value='1', shape=(), dtype='float32'}",
    "%y: f32[] = full() {value=9" + "9" * 5000 + ", shape=(), dtype='float32'}",
    "%y: f32[4,16] = pad_slice(%x) {shape=(4, 16), starts=(0, 1), stops=(3, 7), steps=(1, 1)}",
    "%x.m1: f32[4,16] = tanh(%x) [mirror]",
    "%0: f32[4,16] = tanh(%x) [mirror=" + "9" * 5000 + "]",
    "%0: f32[4,16] = tanh(%x) [mirror=²]",
]


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:30])
def test_hostile_lines_of_a_graph_are_clean_errors(text, line):
    content = json.loads(text)
    for at in (1, len(content["graph"]) - 4):
        lines = [*content["graph"][:at], f"  {line}", *content["graph"][at:]]
        with pytest.raises(GraphcError):
            checked_plan(sealed({**content, "graph": lines}))


DAMAGED = {
    "empty": b"",
    "not JSON": b"graph {\n}\n",
    "binary": bytes(range(256)) * 20,
    "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "NaN": b'{"format": NaN}',
    "a key twice": b'{"format": "graphc.plan", "format": "graphc.plan"}',
    "a list": b"[1, 2]",
    "many digits": b'{"format": ' + b"1" * 10_000 + b"}",
    "overflow": b'{"format": "graphc.plan", "version": 1e999}',
    "costs": b'{"format": 1, "device": {"name": "cpu"}, "measured": []}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_other_files_are_clean_errors(tmp_path, name):
    path = tmp_path / "plan.json"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(PlanFileError, match=f"plan {str(path)!r}: .*graphc plan MODEL"):
        g.load_plan(path)


def test_a_file_that_is_cut_short(text, tmp_path):
    path = tmp_path / "plan.json"
    for part in (0.1, 0.5, 0.9, 0.999):
        path.write_text(text[: int(len(text) * part)])
        with pytest.raises(PlanFileError, match="cut short"):
            g.load_plan(path)


def test_paths_that_cannot_be(plan, tmp_path):
    with pytest.raises(PlanFileError, match="there is no file"):
        g.load_plan(tmp_path / "gone.json")
    with pytest.raises(PlanFileError, match="cannot read"):
        g.load_plan(tmp_path)
    for path in (3, None):
        with pytest.raises(PlanFileError, match="a path is"):
            g.load_plan(path)
        with pytest.raises(PlanFileError, match="a path is"):
            g.save_plan(plan, path)
    for path in (tmp_path / "no" / "folder.json", tmp_path, "nul\0byte"):
        with pytest.raises(PlanFileError, match="nothing was written"):
            g.save_plan(plan, path)
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_a_file_completely_or_not_at_all(plan, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(PlanFileError, match="No space left"):
            g.save_plan(plan, path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"
    g.save_plan(plan, path)
    assert path.read_text() == plan.to_json()


# --- random mutations ---


def places(content, path=()):
    """Paths of all that can be changed."""
    if isinstance(content, dict):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content)
    else:
        inner = ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


STRANGE = [None, True, "", "view", "new", "%0", [], {}, -1, 0, 1, 4, 256, 1.5, 2**53, 10**30, 1e300]


def mutate(content, random):
    """Change, add or remove one thing anywhere."""
    *path, key = random.choice(list(places(content)))
    holder = content
    for step in path:
        holder = holder[step]
    old = holder[key]
    match random.randrange(6):
        case 0:
            holder[key] = random.choice(STRANGE)
        case 1 if isinstance(holder, dict):
            holder[f"{key}."] = holder.pop(key)
        case 2:
            del holder[key]
        case 3 if isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), old)
        case 4:
            others = list(holder.values()) if isinstance(holder, dict) else holder
            holder[key] = random.choice(others)
        case _ if type(old) is int:
            holder[key] = old + random.choice([-256, -4, -1, 1, 4, 256, old])
        case _ if isinstance(old, str) and old:
            at = random.randrange(len(old))
            holder[key] = old[:at] + random.choice(list("0123 ,%@=()[]{}'m.-_é")) + old[at + 1 :]
        case _:
            holder[key] = random.choice(STRANGE)


def trains_right(found):
    """Whether a program of the plan, freed bytes NaN, equals a run without any plan."""
    rng = np.random.default_rng(1)
    feed = {}
    for source in found.graph.inputs:
        if source.type.elements > 10**6:
            return True  # larger than what this test runs
        drawn = rng.random(source.shape) * (source.type.dtype.kind == "float")
        feed[source.name] = drawn.astype(source.type.dtype.numpy)
    wanted, states = run_plain(found.graph, [feed])
    program = g.Program(found, poison=True)
    outputs = program.step(feed)
    same = {k: bits(v) for k, v in outputs.items()} == {k: bits(v) for k, v in wanted[0].items()}
    return same and {k: bits(v) for k, v in program.states.items()} == {
        k: bits(v) for k, v in states.items()
    }


@examples(200)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_mutated_file_is_an_error_or_the_same_plan(text, seed, count):
    content, chance = json.loads(text), random.Random(seed)
    for _ in range(count):
        mutate(content, chance)
    try:
        found = checked_plan(json.dumps(content))
    except GraphcError:
        return
    assert found.to_json().splitlines()[:-2] == text.splitlines()[:-2]


@examples(200)
@given(st.integers(0, 2**32), st.sampled_from(["graph", "buffers", "placements", "workspaces"]))
def test_a_mutated_layout_is_an_error_or_trains_right(text, seed, part):
    """With the checksum of the changed content: only checks of meaning are left."""
    content, chance = json.loads(text), random.Random(seed)
    mutate(content[part], chance)
    try:
        found = checked_plan(sealed(content))
    except GraphcError:
        return
    assert trains_right(found)


def test_alignments():
    assert check_alignment(64) == 64
    with pytest.raises(GraphcError):
        check_alignment(48)
