"""graphc pack: offsets for the buffers in a file."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from graphc.byte_sizes import exact_bytes, parse_bytes
from graphc.cli.arguments import check_writable
from graphc.cli.plans import written
from graphc.cli.terminal import say
from graphc.errors import whole_number
from graphc.planner.pack import THOROUGH, Packing, pack
from graphc.planner.pack.csv_file import read_buffers, write_offsets
from graphc.progress import report

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pack", help="assign offsets to buffers with live ranges, given as CSV"
    )
    parser.add_argument(
        "file", metavar="FILE", help="id,lower,upper,size[,offset]; an offset pins its buffer"
    )
    parser.add_argument(
        "--capacity", metavar="BYTES", help="stop at a packing within it, fail without one"
    )
    parser.add_argument(
        "--alignment", type=int, default=1, metavar="A",
        help="round sizes up, and place buffers at multiples of A (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--effort", type=int, default=THOROUGH, metavar="N",
        help=f"work of the search, about a nanosecond a unit (default: {THOROUGH})",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="OUT", help="write the buffers with offsets as CSV"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Pack the buffers and print the height of the packing."""
    alignment = whole_number("--alignment", options.alignment)
    effort = whole_number("--effort", options.effort, 0)
    capacity = None
    if options.capacity is not None:
        capacity = parse_bytes("--capacity", options.capacity)
    table = read_buffers(options.file)
    if options.output is not None:
        check_writable(options.output)
    report(f"packing {len(table.ids):,} buffers")
    started = time.perf_counter()
    packing = pack(
        table.lower,
        table.upper,
        table.size,
        alignment=alignment,
        pinned=table.pinned,
        capacity=capacity,
        effort=effort,
        ids=table.ids,
    )
    seconds = time.perf_counter() - started
    if options.output is not None:
        write_offsets(options.output, table, packing.offsets)
    if options.json:
        found = {
            "buffers": len(table.ids),
            "height": packing.height,
            "bound": packing.bound,
            "gap": packing.gap,
            "optimal": packing.is_optimal,
            "seconds": seconds,
            "proven": packing.proven,
            "effort": effort,
            "work": packing.work,
        }
        say(json.dumps(found))
        written(options)
        return
    say(f"buffers    {len(table.ids)}, {len(table.pinned)} of them pinned")
    say(f"height     {exact_bytes(packing.height)}, {_standing(packing, effort, capacity)}")
    say(f"bound      {exact_bytes(packing.bound)}")
    if packing.proven > packing.bound:
        say(f"proven     at least {exact_bytes(packing.proven)}")
    say(f"gap        {packing.gap:.4%}")
    say(f"seconds    {seconds:.2f}")
    written(options)


def _standing(packing: Packing, effort: int, capacity: int | None) -> str:
    """Describe why the search ended."""
    if packing.is_optimal:
        return "proven minimal"
    if capacity is not None:
        return "within the capacity, where the search stops"
    if packing.work >= effort:
        return f"not proven minimal: the search ended at the effort of {effort}"
    return "not proven minimal: problems with this many buffers are not searched further"
