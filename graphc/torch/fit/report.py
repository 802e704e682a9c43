"""The answer of `graphc fit`: a verdict, a table of bytes by kind, and changes that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from graphc.byte_sizes import format_bytes
from graphc.devices.device_memory import DeviceMemory
from graphc.torch.fit.changes import Change
from graphc.torch.fit.largest import MOST
from graphc.torch.fit.page import fit_page
from graphc.torch.fit.plans import PlannedPeaks
from graphc.torch.fit.step import ALLOCATOR, Prediction

CONTEXT = "CUDA context and driver"
NO_TIME = 1e-6
"""Smaller differences of times, as fractions of a step, come from rounding."""


@dataclass(frozen=True)
class FitReport:
    """A prediction for a device; parts that were not computed are None or empty.

    `assumed` has the sizes and options of the step, and `ignored` what it ignores of a
    configuration. `notes` are warnings. `batch` and `seq` are the largest that fit, 0 if none does.
    `eager_bytes` is the peak of the step without a plan, without allocator rounding. `plan_error`
    is the reason why graphc cannot plan the step.
    """

    model: str
    memory: DeviceMemory
    found: Prediction
    batch: int | None
    seq: int | None
    eager_bytes: int
    planned: PlannedPeaks | None
    plan_error: str
    changes: Sequence[Change]
    assumed: Mapping[str, Any]
    ignored: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def is_of_plan(self) -> bool:
        """True if the prediction is that of graphc's plan."""
        return self.planned is not None and self.found is self.planned.prediction

    @property
    def spare_bytes(self) -> int:
        """The bytes left on the device; if negative, the missing ones."""
        return self.memory.spare_bytes(self.found.needed_bytes)

    @property
    def context_bytes(self) -> int:
        """The bytes of the device that tensors cannot use."""
        return self.memory.total_bytes - self.memory.usable_bytes

    @property
    def json(self) -> dict[str, Any]:
        """The report as a JSON object; sizes are in bytes, times in seconds or fractions."""
        return {
            "model": self.model,
            "device": self.memory.name,
            "fits": self.spare_bytes >= 0,
            "assumed": dict(self.assumed),
            "ignored": list(self.ignored),
            "notes": list(self.notes),
            "total_bytes": self.memory.total_bytes,
            "usable_bytes": self.memory.usable_bytes,
            "needed_bytes": self.found.needed_bytes,
            "spare_bytes": self.spare_bytes,
            "by_kind_bytes": {**self.found.by_kind_bytes, CONTEXT: self.context_bytes},
            "step_seconds": self.found.seconds,
            "largest_batch": self.batch,
            "largest_seq": self.seq,
            "eager_bytes": self.eager_bytes,
            "aot_eager_bytes": self.planned and self.planned.aot_eager_bytes,
            "planned_bytes": self.planned and self.planned.planned_bytes,
            "planned_extra_time_fraction": self.planned and self.planned.extra_time,
            "compiled": self.planned and self.planned.compiled and asdict(self.planned.compiled),
            "plan_error": self.plan_error,
            "changes": [
                {
                    "options": each.flags,
                    "needed_bytes": each.prediction.needed_bytes,
                    "extra_time_fraction": each.extra_time,
                }
                for each in self.changes
            ],
        }

    def page(self) -> str:
        """Return an HTML page: torch's allocator over the ops of a step."""
        kinds, needed = dict(self.found.by_kind_bytes), self.found.needed_bytes
        kinds.pop(ALLOCATOR, None)
        title = f"{self.model}: {next(self.lines())}"
        return fit_page(title, self.found.eager, self.memory, kinds, needed, self.notes)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report, the verdict first."""
        needed, spare = format_bytes(self.found.needed_bytes), format_bytes(abs(self.spare_bytes))
        name = self.memory.name
        if self.spare_bytes >= 0:
            usable = format_bytes(self.memory.usable_bytes)
            yield f"fits {name}: needs {needed} of {usable}, {spare} to spare"
        else:
            yield f"does not fit {name}: needs {needed}, {spare} more than it has for tensors"
        given = (f"{name} {value}" for name, value in self.assumed.items() if value is not None)
        yield f"a step of {', '.join(given)}"
        for entry in self.ignored:
            yield f"ignores the configuration's {entry}"
        yield from self.notes
        yield ""
        for kind, size in self.found.by_kind_bytes.items():
            if size:
                yield _row(kind, size)
        yield _row("total", self.found.needed_bytes)
        yield _row(CONTEXT, self.context_bytes) + ", beside the total"
        if not self.is_of_plan:
            yield ""
            yield f"largest batch that fits: {_count(self.batch, 'the function has no batch')}"
        if self.seq is not None or (self.assumed.get("length") and not self.is_of_plan):
            yield f"longest sequence that fits: {_count(self.seq, 'the example is too short')}"
        yield from self._peaks()
        if self.changes:
            yield ""
            instead = " without a plan" if self.is_of_plan else ""
            yield f"To fit{instead}, with the time of a step by a roofline:"
        for each in self.changes:
            yield (
                f"  {format_bytes(each.prediction.needed_bytes):>11}  {each.extra_time:>+7.1%}  "
                f"{each.flags}"
            )

    def _peaks(self) -> Iterator[str]:
        if self.plan_error:
            yield f"graphc cannot plan this step: {self.plan_error}"
        if self.planned is None:
            return
        plan = self.planned
        plain_seconds = plan.prediction.seconds / (1 + plan.extra_time)
        eager_time = 0.0 if self.is_of_plan else self.found.seconds / plain_seconds - 1
        yield ""
        yield "Peak of a step, without allocator rounding:"
        yield _row("eager torch", self.eager_bytes) + (
            _time(eager_time) if abs(eager_time) > NO_TIME else ""
        )
        if plan.aot_eager_bytes is not None:
            yield _row("torch.compile with aot_eager", plan.aot_eager_bytes)
        yield _row("graphc's plan", plan.planned_bytes) + _time(plan.extra_time)
        if plan.compiled is not None:
            yield _row("torch.compile with inductor", plan.compiled.torch_bytes)
            plan_of = _row("graphc's plan, compiled", plan.compiled.planned_bytes)
            yield plan_of + _time(plan.compiled.extra_time)
        if plan.least is not None:
            size, extra = plan.least
            yield (
                "No plan within the bytes of eager torch was found; the smallest needs "
                f"{format_bytes(size)}{_time(extra)}."
            )


def _time(extra: float) -> str:
    return f", {extra:+.1%} time"


def _row(name: str, size: int) -> str:
    return f"  {name:<30}{format_bytes(size):>12}"


def _count(number: int | None, why: str) -> str:
    if number is None:
        return f"unknown, since the ops of a step depend on it, or {why}"
    if number >= MOST:
        return f"{number:,} or more; larger ones are not tried"
    return f"{number:,}" if number else "none"
