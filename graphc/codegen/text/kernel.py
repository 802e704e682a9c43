"""Kernels as C++ text, and the prelude that all kernels include."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

ENTRY = "@ENTRY@"
"""A placeholder for the kernel's name in a text that is not named yet."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A `__global__` function as C++ text. Equal texts have equal names, and different texts have
    different names."""

    name: str
    text: str


def named(op: str, body: str) -> Kernel:
    """Return a kernel named after its op and a digest of its text."""
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    name = f"graphc_{op}_{digest}"
    return Kernel(name, body.replace(ENTRY, name))


@cache
def prelude() -> str:
    """Return the declarations that every kernel uses."""
    return resources.files(__package__).joinpath("prelude.cuh").read_text("utf-8")


def module_text(kernels: Iterable[Kernel]) -> str:
    """Return the text of a translation unit that contains each of these kernels once, ordered by
    name."""
    texts = {kernel.name: kernel.text for kernel in kernels}
    return "\n".join([prelude(), *(texts[name] for name in sorted(texts))])
