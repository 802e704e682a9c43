"""Random modules that return aliases, duplicates, views, parameters and written buffers."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

ROWS, WIDTH = 4096, 256
VALUE = 4 * ROWS * WIDTH
"""Bytes of a value: 4 MiB, four times the tolerated difference of a peak."""

Returning = Callable[["Module", Tensor], object]

ALIASES: dict[str, Returning] = {
    "itself": lambda m, h: h,
    "twice": lambda m, h: [h, h],
    "in a dict": lambda m, h: {"a": h, "b": [h]},
    "identity": lambda m, h: nn.Identity()(h),
    "contiguous": lambda m, h: h.contiguous(),
    "float": lambda m, h: h.float(),
    "no dropout": lambda m, h: nn.functional.dropout(h, 0.5, training=False),
    "detached": lambda m, h: h.detach(),
}
VIEWS: dict[str, Returning] = {
    "transposed": lambda m, h: h.t(),
    "flat": lambda m, h: h.view(-1),
    "row": lambda m, h: h[0],
    "rows": lambda m, h: h[: ROWS // 2],
    "rows of rows": lambda m, h: h[1:][1:],
    "all rows": lambda m, h: h[:],
    "narrow": lambda m, h: h.narrow(0, 0, ROWS),
    "expanded": lambda m, h: h.expand(2, ROWS, WIDTH),
    "windows": lambda m, h: h.unfold(1, 4, 2),
    "real part": lambda m, h: torch.view_as_complex(h.view(ROWS, -1, 2)).real,
    "part of a row": lambda m, h: h[1][: WIDTH // 2],
    "columns": lambda m, h: h[:, ::2],
    "split": lambda m, h: h.split(ROWS // 4),
    "chunk": lambda m, h: h.chunk(2, 1),
}
SOURCES: dict[str, Returning] = {
    "parameter": lambda m, h: m.used.weight,
    "unused parameter": lambda m, h: m.other,
    "view of a parameter": lambda m, h: m.used.weight.t(),
    "row of a parameter": lambda m, h: m.used.weight[0],
    "buffer": lambda m, h: m.buffer,
}
WRITES: dict[str, Returning] = {
    "scaled": lambda m, h: m.buffer.mul_(0.5),
    "copied": lambda m, h: m.buffer.copy_(h.detach()),
    "added": lambda m, h: m.buffer.add_(h.detach()),
    "slice": lambda m, h: m.buffer[:100].copy_(h.detach()[:100]),
}


class Module(nn.Module):
    """Products and functions of x, of which it returns some values by the names of rules."""

    def __init__(self, depth: int, returned: list[tuple[str, int]], written: list[str]) -> None:
        super().__init__()
        self.used, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.other = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.register_buffer("buffer", torch.zeros(ROWS, WIDTH))
        self.depth, self.returned, self.written = depth, returned, written

    def forward(self, x: Tensor) -> object:
        values = [self.used(x)]
        for _ in range(self.depth):
            values.append(self.last(values[-1].sin()))
        for name in self.written:
            WRITES[name](self, values[0])
        rules = {**ALIASES, **VIEWS, **SOURCES}
        return [rules[name](self, values[place]) for name, place in self.returned]


def module_of(seed: int) -> Module:
    """Return the random module of a seed."""
    draw = random.Random(seed)
    depth = draw.randrange(3)
    names = [name for rules in (ALIASES, VIEWS, SOURCES) for name in draw.sample(list(rules), 1)]
    names += draw.choices([*ALIASES, *VIEWS], k=2)
    returned = [
        (name, draw.randrange(depth + 1)) for name in draw.sample(names, draw.randint(1, 5))
    ]
    written = draw.sample(list(WRITES), draw.randrange(3))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Module(depth, [("itself", depth), *returned], written)
