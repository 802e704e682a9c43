"""Files with a change in one place: the checks of meaning, of structure and of text find it."""

import json

import pytest
from plans.changed_files import place_of, sealed, tampered

import graphc as g
from graphc.errors import GraphcError, PlanError, PlanFileError
from graphc.ir.types import channels_last_strides
from graphc.plans.plan_file import checked_plan


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
def test_false_layouts_and_figures_are_caught(text, name):
    with pytest.raises(PlanError):
        checked_plan(tampered(text, FIGURES[name]))


def test_the_checksum_covers_fields_without_a_check(text):
    for change in (
        lambda c: c["settings"].update(optimizer="SGD"),
        lambda c: c["strategy_bytes"].update(sharing=c["strategy_bytes"]["sharing"] + 256),
        lambda c: c["recomputation"].update(extra_time_fraction=0.125),
        lambda c: c["device"].update(name="gpu"),
    ):
        content = json.loads(text)
        change(content)
        with pytest.raises(PlanFileError, match="changed after writing"):
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
    "placements: the placement of the value '%0'": lambda c: c["placements"].pop("%0"),
    "placements: expected only values": lambda c: c["placements"].update({"%z": {}}),
    "arena_bytes": lambda c: c.update(arena_bytes=2**80),
    "feature_map_bytes": lambda c: c.update(feature_map_bytes=-1),
    "strategy_bytes": lambda c: c["strategy_bytes"].pop("none"),
    "alignment": lambda c: c.update(alignment=100),
    "recompute": lambda c: c.update(recompute="all"),
    "allocate": lambda c: c.update(allocate=None),
    "device.flops_per_second": lambda c: c["device"].update(flops_per_second=0),
    "device: unknown key": lambda c: c["device"].update(cores=2),
    "settings.optimizer": lambda c: c["settings"].update(optimizer=[]),
    "certificate": lambda c: c.update(certificate=[]),
    "recomputation.extra_time_fraction": lambda c: c["recomputation"].update(
        extra_time_fraction=True
    ),
    "planning_seconds": lambda c: c.update(planning_seconds=None),
    "workspaces[0].buffer": lambda c: c["workspaces"][0].update(buffer=0),
    "workspaces[0].step": lambda c: c["workspaces"][0].update(step=10**6),
    "graph[2]: expected one line": lambda c: c["graph"].__setitem__(2, "a\nb"),
    "graph[2]: expected a string": lambda c: c["graph"].__setitem__(2, 7),
    "graph: line 4: expected": lambda c: c["graph"].__setitem__(3, "import os"),
    "the file: unknown key": lambda c: c.update(pickle="gASV"),
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


def test_strides_that_no_planner_chooses_are_rejected():
    """They need the same bytes, but sums over them have another order, so other last bits."""
    x, t = g.input("x", (2, 3, 6, 6)), g.input("t", (2,), "int32")
    h = g.relu(g.batch_norm(g.conv2d(x, 4, 3, padding=1, name="conv"), name="norm"))
    h = g.conv2d(h, 4, 3, padding=1, name="second")
    loss = g.softmax_cross_entropy(g.linear(g.reshape(h, (2, -1)), 5, name="last"), t)
    made = g.plan(loss, optimizer=g.optim.SGD(), allocate="none", kernels="native")
    text, told = made.to_json(), []
    checked_plan(text)
    maps = [v for v in made.graph.values if v.type.rank == 4 and made.placements[v].how == "new"]
    for value in maps:
        name, has = made.graph.names[value], made.placements[value].strides
        assert has in (None, channels_last_strides(value.type))
        other = None if has else list(channels_last_strides(value.type))

        def changed(content, name=name, other=other):
            content["placements"][name]["strides"] = other

        with pytest.raises(PlanError) as error:
            checked_plan(tampered(text, changed))
        told.append(str(error.value))
    assert sum("for the strides of" in each for each in told) >= 2, told
