"""The result of a verification: measured bytes, and the tensors with other bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from graphc.byte_sizes import exact_bytes, format_bytes

TOLERANCE, LEAST_TOLERANCE = 0.01, 1 << 20
"""Tolerated deviation from the planned peak, as a fraction and in bytes; allocators round up."""

SHOWN = 6
"""Maximum number of names in a printed list."""


@dataclass(frozen=True)
class WorstNode:
    """The node whose allocation differs most from what was planned for it."""

    node: str
    module: str
    planned_bytes: int
    measured_bytes: int

    def __str__(self) -> str:
        where = f"{self.node} of {self.module}" if self.module else self.node
        more = self.measured_bytes - self.planned_bytes
        measured = f"{format_bytes(abs(more))} {'more' if more > 0 else 'less'}"
        return f"{where}: planned {format_bytes(self.planned_bytes)}, measured {measured}"


@dataclass(frozen=True)
class Verified:
    """Measured peak of one planned step, and a bitwise comparison with ``backend="aot_eager"``.

    `different` lists the names of differing tensors by kind: ``outputs``, ``gradients``,
    ``buffers``, ``random_state``. A kind without differences maps to an empty tuple. Tensors that
    runs of ``aot_eager`` do not agree on are in `not_repeatable` instead.
    """

    planned_peak_bytes: int
    measured_peak_bytes: int
    different: dict[str, tuple[str, ...]]
    worst: WorstNode | None
    unlike_eager: dict[str, float] = field(default_factory=dict)
    """Tensors in which ``aot_eager`` itself differs from eager torch by more than rounding.

    The numbers are largest differences, relative to the largest value.
    """
    eager_error: str = ""
    """The error that the module raises in eager torch, though ``aot_eager`` runs it."""
    not_repeatable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names, by kind, of tensors in which two runs of ``aot_eager`` differ from each other.

    Some kernels of torch for GPUs are not deterministic. ``aot_eager`` runs again only if the plan
    has other bits, so other tensors may vary, too. A kind without such tensors is missing.
    """

    remainder_bytes: int = 0
    """Bytes of the measured peak that no tensor or op requested; 0 on a CPU.

    The caching allocator for GPUs hands out blocks of more than 1 MiB with a remainder of up to
    1 MiB. Its size depends on the blocks that are free, so a plan cannot know it.
    """

    spare_bytes: int = 0
    """Bytes of the planned peak that the step may not use.

    Plans have an upper bound for gradients of tensors that are returned with views of them, and of
    returned parameters. The plan of a compiled step is an upper bound as a whole.
    """
    is_compiled: bool = False
    """True if inductor has compiled the step: `unlike_eager` then compares the step itself."""

    @property
    def ratio(self) -> float:
        """The ratio of the measured peak to the planned peak."""
        return self.measured_peak_bytes / max(1, self.planned_peak_bytes)

    @property
    def same_bits(self) -> bool:
        """True if outputs, gradients, buffers and random state are bitwise equal.

        Tensors that are not repeatable do not count.
        """
        return not any(self.different.values())

    @property
    def held(self) -> bool:
        """True if the peak differs by at most 1 % or 1 MiB (the larger) from the planned peak.

        `remainder_bytes` do not count, and it may be lower by `spare_bytes`.
        """
        requested = self.measured_peak_bytes - self.remainder_bytes
        deviation = requested - self.planned_peak_bytes
        tolerance = max(LEAST_TOLERANCE, TOLERANCE * self.planned_peak_bytes)
        return -tolerance - self.spare_bytes <= deviation <= tolerance

    @property
    def json(self) -> dict[str, Any]:
        """All fields and properties as a JSON object."""
        return {**asdict(self), "ratio": self.ratio, "same_bits": self.same_bits, "held": self.held}

    def _remainder(self) -> list[str]:
        if self.remainder_bytes <= 0:
            return []
        size = format_bytes(self.remainder_bytes)
        return [
            f"remainders     {size} of the measured peak, which torch's allocator adds to blocks"
        ]

    def __str__(self) -> str:
        same = [
            kind.replace("_", " ")
            for kind, names in self.different.items()
            if not names and not self.not_repeatable.get(kind)
        ]
        lines = [
            f"measured peak  {exact_bytes(self.measured_peak_bytes)}, {self.ratio:.3f} of planned",
            f"planned peak   {exact_bytes(self.planned_peak_bytes)}",
            *self._remainder(),
        ]
        if not self.is_compiled:  # the bits of inductor's kernels are their own
            lines.append(f"same bits      {', '.join(same) or 'none'}")
        for kind, names in self.different.items():
            if names and not self.is_compiled:
                lines.append(f"other bits     {_listed(kind, names)}")
        for kind, names in self.not_repeatable.items():
            listed = f"{_listed(kind, names)} (two runs of aot_eager differ)"
            lines.append(f"not repeatable {listed}")
        for name, difference in list(self.unlike_eager.items())[:SHOWN]:
            which = "compiled step" if self.is_compiled else "aot_eager"
            lines.append(f"{which:14} {name} differs from eager by {difference:.2g} of its values")
        if self.eager_error:
            lines.append(f"aot_eager      runs, and eager torch fails: {self.eager_error}")
        worst = "every node allocates as planned" if self.worst is None else str(self.worst)
        return "\n".join(lines if self.is_compiled else [*lines, f"worst node     {worst}"])


def _listed(kind: str, names: Sequence[str]) -> str:
    """Return a kind with the first names of its tensors, and the number of the others."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{kind.replace('_', ' ')}: {', '.join(names[:SHOWN])}{more}"
