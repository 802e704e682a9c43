"""Named passes in a row: verified after each, and written to a folder where asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from graphc.errors import GraphcError, GraphError
from graphc.ir.graph import Graph
from graphc.ir.text import format_graph
from graphc.ir.verify import verify
from graphc.passes.common_subexpressions import share_common_subexpressions
from graphc.passes.dead_code import remove_dead_code
from graphc.passes.fusion.constants import inline_constants
from graphc.passes.fusion.epilogues import fuse_epilogues
from graphc.passes.modes import number_streams
from graphc.passes.place_updates import place_updates
from graphc.passes.precision import widen_products
from graphc.passes.running_sums import accumulate_products
from graphc.passes.simplify import simplify

Pass = Callable[[Graph], Graph]

PASSES: dict[str, Pass] = {
    "number-streams": number_streams,
    "simplify": simplify,
    "common-subexpressions": share_common_subexpressions,
    "dead-code": remove_dead_code,
    "widen-products": widen_products,
    "accumulate-products": accumulate_products,
    "place-updates": place_updates,
    "inline-constants": inline_constants,
    "fuse-epilogues": fuse_epilogues,
}

FORWARD = ("number-streams", "simplify", "common-subexpressions", "dead-code")
"""Before the gradient."""

TRAINING = ("common-subexpressions", "widen-products", "accumulate-products", "place-updates")
"""After the gradient; `trace` has left nothing dead."""

GPU = ("fuse-epilogues",)
"""Behind these, in plans for a GPU."""


@dataclass
class Dump:
    """Writes numbered files into a folder: ``00-forward.txt``, ``01-simplify.txt``, ..."""

    folder: Path | None = None
    count: int = field(default=0, init=False)

    def write(self, name: str, text: Callable[[], str]) -> None:
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{self.count:02d}-{name}.txt").write_text(text())
        except OSError as error:
            raise GraphcError(
                f"cannot dump into {str(self.folder)!r}: {error.strerror}; choose a folder that is "
                "writable"
            ) from None
        self.count += 1


def run_passes(graph: Graph, names: Sequence[str] | Mapping[str, Pass], dump: Dump) -> Graph:
    """Apply passes by name, verifying after each; an ill-formed result names the pass."""
    passes = names if isinstance(names, Mapping) else {name: PASSES[name] for name in names}
    for name, apply in passes.items():
        graph = apply(graph)
        try:
            verify(graph)
        except GraphcError as error:
            raise GraphError(f"after the pass {name!r}: {error}") from error
        dump.write(name, functools.partial(format_graph, graph))
    return graph
