"""graphc pack: offsets for the buffers in a file."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

from graphc.cli.arguments import check_writable
from graphc.errors import PackingError, whole_number
from graphc.ir.types import format_bytes, parse_bytes
from graphc.packing import THOROUGH, pack
from graphc.packing.csv_file import names_of, read_buffers, write_offsets

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser(
        "pack", help="offsets for buffers with fixed lifetimes, given as CSV"
    )
    parser.add_argument(
        "file", metavar="FILE", help="id,lower,upper,size[,offset]; an offset pins its buffer"
    )
    parser.add_argument("--capacity", metavar="BYTES", help="fail above it, for example 7GiB")
    parser.add_argument(
        "--alignment", type=int, default=1, metavar="A",
        help="sizes are rounded up to it, offsets are multiples of it (default: 1)",
    )  # fmt: skip
    parser.add_argument("-o", "--output", metavar="OUT", help="CSV file with an offset for each")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Pack the buffers and print how high they are."""
    alignment = whole_number("--alignment", options.alignment)
    capacity = None
    if options.capacity is not None:
        capacity = parse_bytes("--capacity", options.capacity)
    table = read_buffers(options.file)
    if options.output is not None:
        check_writable(options.output)
    started = time.perf_counter()
    try:
        packing = pack(
            table.lower,
            table.upper,
            table.size,
            alignment=alignment,
            pinned=table.pinned,
            capacity=capacity,
            effort=THOROUGH,
        )
    except PackingError as error:
        if error.buffers:
            error.args = (
                f"{error}. Buffers are counted from 0; these have the ids "
                f"{names_of(table.ids, error.buffers)}",
            )
        raise
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
        }
        print(json.dumps(found))
        return
    proven = "the least there is" if packing.is_optimal else "not proven to be the least"
    print(f"buffers    {len(table.ids)}, {len(table.pinned)} of them pinned")
    print(f"height     {packing.height} bytes = {format_bytes(packing.height)}, {proven}")
    print(f"bound      {packing.bound} bytes = {format_bytes(packing.bound)}")
    print(f"gap        {packing.gap:.4%}")
    print(f"seconds    {seconds:.2f}")
