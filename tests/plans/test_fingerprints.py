"""Plans change only on purpose: a digest of the nodes and buffers of each, in tests/golden.

`pytest tests/plans/test_fingerprints.py --update-golden` rewrites the digests.
"""

import hashlib

import graphc as g
from graphc.models import MODELS

NETWORKS = {
    "mlp": {"layers": 4, "hidden": 32, "batch": 8},
    "preact_resnet": {"depth": 11, "batch": 2},
    "unet": {"image": 32, "width": 8, "depth": 2, "batch": 2},
    "lstm": {"seq_len": 3, "layers": 2, "hidden": 32, "classes": 10, "batch": 4},
    "gpt2": {
        "layers": 2, "width": 32, "heads": 2, "seq_len": 16, "batch": 2, "vocab": 64,
        "positions": 16,
    },
}  # fmt: skip
CHOICES = (
    {"allocate": "none"},
    {"allocate": "sharing"},
    {"recompute": "cheap"},
    {"recompute": "sublinear", "accumulate": 2, "clip_norm": 1.0},
    {"recompute": "recursive", "streams": 2},
    {"max_extra_flops": 0.1},
    {"device": "h200", "precision": "bf16"},
)


def digest(plan):
    """Return a digest of all nodes, with their inputs and types, and of the places of buffers."""
    numbers: dict[g.Value, int] = {}
    nodes = [
        (
            node.op.name,
            [numbers.setdefault(v, len(numbers)) for v in (*node.inputs, *node.outputs)],
            [str(v.type) for v in node.outputs],
        )
        for node in plan.graph.nodes
    ]
    buffers = [(b.offset, b.bytes, b.lifetime.first, b.lifetime.last) for b in plan.buffers]
    return hashlib.sha256(repr((nodes, sorted(buffers))).encode()).hexdigest()[:16]


def test_no_plan_has_changed(golden):
    lines = []
    for name, sizes in NETWORKS.items():
        for choice in CHOICES:
            plan = g.plan(MODELS[name](**sizes), optimizer=g.optim.Adam(), **choice)
            label = ", ".join(f"{key}={value}" for key, value in choice.items())
            lines.append(f"{name}: {label}: {plan.arena_bytes} {digest(plan)}\n")
    golden("plans.txt", "".join(lines))
