"""`str(plan)`: at most 40 lines of 100 columns, with the peak and what would lower it."""

import pytest

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.models import MODELS, gpt2, mlp
from graphc.plans.overview import LINES, WIDTH

SMALL = {"layers": 4, "hidden": 64, "inputs": 512, "batch": 256}


def lines_of(plan):
    lines = str(plan).splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH
    return lines


@pytest.mark.parametrize("name", ["mlp", "unet", "two_tower"])
def test_it_fits_a_screen_for_models_of_the_zoo(name):
    lines_of(g.plan(MODELS[name](), optimizer=g.optim.Adam()))


def test_it_fits_a_screen_with_every_section():
    """Long names and settings are cut; the plan has all rows that can occur together."""
    with g.scope("encoder" * 20):
        loss = gpt2(layers=2, width=64, heads=2, seq_len=64, batch=8, vocab=200)
    adam = g.optim.Adam(g.optim.Schedule(1e-3, 100))
    lines = lines_of(
        g.plan(
            loss, optimizer=g.optim.Groups([("bias", adam), ("norm", adam)], adam),
            device="h100", overlap_copies=True, ranks=2, shard="states", max_extra_flops=0.4,
            clip_norm=1.0, precision="fp16", reorder=False,
        )
    )  # fmt: skip
    assert any(line.endswith("...") for line in lines)
    for label in ("slot", "gathered", "mirror", "planned for", "recomputed ops", "collectives"):
        assert any(line.startswith(f"  {label} ") for line in lines), label


def test_it_names_peak_kinds_and_the_whole_text():
    plan = g.plan(mlp(**SMALL), optimizer=g.optim.Adam())
    text = "\n".join(lines_of(plan))
    assert f"plan.text() lists {len(plan.graph.nodes)} nodes" in text
    assert f"peak at node {plan.peak_step} (" in text
    assert f"  state               {format_bytes(plan.state_bytes):>12}" in text
    assert plan.text().startswith("nodes\n")


def test_it_lists_what_is_recomputed_by_op():
    plan = g.plan(mlp(**SMALL), optimizer=g.optim.SGD(), recompute="sublinear")
    text = "\n".join(lines_of(plan))
    assert f"  recomputed          {plan.recomputation.nodes} nodes, " in text
    assert "  recomputed ops      " in text


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"optimizer": g.optim.SGD()}, 'budget="...", or recompute="optimal": '),
        ({"optimizer": g.optim.SGD(), "recompute": "optimal"}, "a smaller budget: "),
        ({"optimizer": g.optim.Adam(), "allocate": "none"}, 'allocate="packed": '),
        ({"optimizer": g.optim.Adam(), "reorder": False}, "without reorder=False: "),
        ({"optimizer": g.optim.Adam(), "device": "h100", "overlap_copies": True},
         "without overlap_copies: "),
        ({}, "a smaller batch: "),
    ],
)  # fmt: skip
def test_it_names_options_that_lower_the_peak(options, hint):
    lines = lines_of(g.plan(mlp(**SMALL), **options))
    hints = lines[lines.index("options that may lower the peak") + 1 :]
    assert any(line.startswith(f"  {hint}") for line in hints), hints


def test_a_graph_without_nodes_has_an_overview():
    x = g.input("x", (4,))
    assert "peak at node 0 (start)" in "\n".join(lines_of(g.plan(outputs={"x": x})))
