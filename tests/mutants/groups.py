"""The core in groups of modules, and for each the tests that belong to it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Modules, by patterns of their paths, and the files and folders of their tests.

    Kernels of a group without `compiled` run as plain Python: a fault in them is not compiled
    first, and it is seen which test calls which of them.
    """

    modules: tuple[str, ...]
    tests: tuple[str, ...]
    compiled: bool = True
    library: str | None = None
    """A package without which the tests of the group are skipped."""


GROUPS = {
    "checker": Group(
        ("graphc/plans/check/*.py",),
        (
            "tests/plans/test_check_plan.py",
            "tests/plans/test_check_against_bytes.py",
            "tests/plans/test_check_copies.py",
            "tests/plans/test_check_family.py",
            "tests/plans/test_streams.py",
            "tests/plans/test_tampered_files.py",
            "tests/memory",
            "tests/properties",
        ),
    ),
    "allocation": Group(
        (
            "graphc/memory/allocate.py",
            "graphc/memory/coloring.py",
            "graphc/memory/hazards.py",
            "graphc/memory/inplace.py",
            "graphc/memory/liveness.py",
            "graphc/memory/placing.py",
            "graphc/memory/sharing.py",
            "graphc/memory/side_by_side.py",
            "graphc/memory/storages.py",
            "graphc/memory/streams.py",
            "graphc/memory/zero_copy.py",
        ),
        (
            "tests/memory",
            "tests/properties",
            "tests/plans/test_memory_accounting.py",
            "tests/plans/test_growth.py",
            "tests/passes/test_passes.py",
        ),
    ),
    "gradient": Group(
        (
            "graphc/passes/gradient.py",
            "graphc/passes/training_step.py",
            "graphc/passes/running_sums.py",
        ),
        (
            "tests/passes/test_gradient.py",
            "tests/passes/test_training_step.py",
            "tests/passes/test_running_sums.py",
            "tests/api/test_optim.py",
            "tests/properties",
        ),
    ),
    "recompute": Group(
        (
            "graphc/memory/budget.py",
            "graphc/memory/evaluations.py",
            "graphc/memory/policies.py",
            "graphc/memory/schedule.py",
            "graphc/memory/search.py",
            "graphc/memory/training_graph.py",
            "graphc/planner/given/*.py",
            "graphc/planner/recompute/*.py",
        ),
        ("tests/memory", "tests/planner/given", "tests/planner/recompute"),
    ),
    "offload": Group(
        ("graphc/planner/copies/*.py",),
        (
            "tests/planner/given/test_offload.py",
            "tests/planner/given/test_pofo_schedules.py",
            "tests/memory/test_host_plans.py",
        ),
    ),
    "scheduling": Group(
        ("graphc/planner/order/*.py", "graphc/planner/p*.py", "graphc/memory/reorder.py"),
        ("tests/planner/order", "tests/passes/test_order.py"),
    ),
    "packing": Group(
        ("graphc/planner/pack/*.py",),
        ("tests/planner/pack", "tests/cli/test_pack.py"),
        compiled=False,
    ),
    "files": Group(
        (
            "graphc/files.py",
            "graphc/json_fields.py",
            "graphc/plans/json_form.py",
            "graphc/plans/plan_file.py",
        ),
        (
            "tests/test_files.py",
            "tests/test_left_files.py",
            "tests/plans/test_files.py",
            "tests/plans/test_json_form.py",
            "tests/plans/test_tampered_files.py",
            "tests/plans/test_mutated_files.py",
            "tests/plans/test_ops_of_users.py",
            "tests/runtime/test_checkpoint.py",
        ),
    ),
    "checkpoint": Group(
        ("graphc/runtime/checkpoint.py",),
        ("tests/runtime/test_checkpoint.py", "tests/test_files.py"),
    ),
    "torch": Group(
        tuple(
            f"graphc/torch/budget/{name}.py"
            for name in ("plan/emit", "trace/joint", "check/replay", "plan/steps")
        ),
        (
            "tests/pytorch/test_gradients.py",
            "tests/pytorch/test_in_place.py",
            "tests/pytorch/test_replay.py",
            "tests/pytorch/test_returned.py",
            "tests/pytorch/test_step.py",
            "tests/pytorch/test_training.py",
            "tests/pytorch/test_verify.py",
        ),
        library="torch",
    ),
}
