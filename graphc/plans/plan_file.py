"""Reading and writing of plan files. Loaded plans are checked like newly made ones."""

from __future__ import annotations

import os
from pathlib import Path

from graphc.errors import PlanError, PlanFileError
from graphc.files import write_atomically
from graphc.plans.check.check_figures import check_figures
from graphc.plans.check.check_plan import check_plan
from graphc.plans.json_form import CURE, checksum, plan_object, plan_to_json, read_plan_json
from graphc.plans.memory_plan import MemoryPlan, as_plan


def save_plan(plan: MemoryPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan as JSON, atomically; raises `PlanFileError`.

    The same plan gives the same bytes, except for the last line, `planning_seconds`.
    """
    plan = as_plan("save_plan: plan", plan)
    write_atomically(path, plan_to_json(plan).encode("ascii"), PlanFileError)


def load_plan(path: str | os.PathLike[str]) -> MemoryPlan:
    """Read and check a plan that `save_plan` or `graphc plan --output` wrote.

    `graphc.Program(plan, seed=...)` then steps to the same bits as a program of the original plan.
    User-defined ops must be defined first. Raises `PlanFileError` if the file cannot be read or is
    invalid, and `PlanError` if a step under the plan would corrupt a value.
    """
    try:
        content = Path(path).read_bytes()
    except TypeError:
        raise PlanFileError(f"a path must be a string or path object, got {path!r}") from None
    except FileNotFoundError:
        raise PlanFileError(f"there is no file {os.fspath(path)!r}; {CURE}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanFileError(f"cannot read the plan {os.fspath(path)!r}: {reason}") from None
    name = f"plan {os.fspath(path)!r}"
    try:
        return checked_plan(content)
    except PlanError as error:
        raise PlanError(f"{name}: {error}", error.culprits) from None
    except PlanFileError as error:
        raise PlanFileError(f"{name}: {error}") from None


def checked_plan(text: str | bytes) -> MemoryPlan:
    """Return the plan in a JSON text, after checking structure, layout, figures and checksum.

    Raises `PlanFileError` and `PlanError` as `load_plan` does.
    """
    found = read_plan_json(text)
    check_plan(found.plan)
    check_figures(found.plan)
    sealed = checksum(plan_object(found.plan))
    if sealed != found.sha256:
        raise PlanFileError(
            f"sha256: the content of the file has the checksum {sealed}, but the file records "
            f"{found.sha256[:80]!r}; the file was changed after writing. {CURE}"
        )
    return found.plan
