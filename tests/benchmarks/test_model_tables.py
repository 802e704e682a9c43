"""Tables on real classes: one line per planned class, and the reason of each refusal."""

import model_tables

MIB = 2**20


def plan(measured_mib, time):
    return {
        "planned_bytes": 4 * MIB,
        "measured_bytes": measured_mib * MIB,
        "same_bits": measured_mib < 4,
        "time_over_eager": time,
    }


ROW = {
    "class": "Planned",
    "nodes": 1200,
    "planning_cpu_seconds": {"total": 6.0},
    "eager_bytes": 9 * MIB,
    "bound_bytes": MIB,
    "plans": {"knee": plan(4, 1.0), "halfway": plan(3, 1.25), "least": plan(2, 1.5)},
}
CHECKPOINTED = {
    "class": "Deep",
    "bytes": {"eager": 8 * MIB, "checkpointing": 4 * MIB, "minimum": 3 * MIB},
    "time_over_eager": {"checkpointing": 1.3, "minimum": 1.2, "same bytes": 1.1},
}


def test_classes_have_sizes_and_times_and_refusals_have_reasons():
    text = model_tables.real_models({"rows": [ROW, {"class": "Refused", "error": "a reason"}]})
    assert text.startswith("1 of 2 classes can be planned. Of 3 plans, 2 match")
    assert "measured peak exceeds 1.000 of its plan" in text
    assert "takes 0.50 CPU seconds per 100 nodes" in text
    assert "| Planned | 1,200 | 6.0 | 9.0 | 4.0 | 3.0 | 2.0 | 1.0 | 1.00 | 1.25 | 1.50 |" in text
    assert text.endswith("Refused:\n\n- Refused: a reason")


def test_checkpointing_is_compared_at_its_bytes_and_at_the_minimum():
    text = model_tables.checkpointing({"checkpointing": [CHECKPOINTED]})
    assert text.endswith("| Deep | 8.0 | 4.0 | 3.0 | 1.30 | 1.20 | 1.10 |")
