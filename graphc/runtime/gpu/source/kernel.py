"""Kernels as text, and how they are launched."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import resources

from graphc.ir.graph import Value
from graphc.ir.types import TensorType

ENTRY = "@ENTRY@"
"""Stands for the kernel's name in a body that has none yet."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One `__global__` function. Equal texts have equal names, different ones different names."""

    name: str
    text: str


def named(op: str, body: str) -> Kernel:
    """A kernel called after its op and a digest of its text."""
    digest = hashlib.sha256(body.encode()).hexdigest()[:12]
    name = f"graphc_{op}_{digest}"
    return Kernel(name, body.replace(ENTRY, name))


@dataclass(frozen=True, slots=True)
class Scratch:
    """Tensor number `index` of a node's scratch."""

    index: int


Buffer = Value | Scratch
"""What a pointer argument points to."""

Argument = Buffer | int
"""A pointer, or an unsigned number of 32 bits."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel on `grid` blocks of `block` threads."""

    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: int
    block: int


@dataclass(frozen=True, slots=True)
class NodeKernels:
    """The launches of one node, in order, and the scratch tensors that they share.

    Scratch depends on shapes and dtypes alone, so it is known before anything has a place.
    """

    launches: tuple[Launch, ...]
    scratch: tuple[TensorType, ...] = ()


@cache
def prelude() -> str:
    """What every kernel stands on."""
    return resources.files(__package__).joinpath("prelude.cuh").read_text("utf-8")


def module_text(kernels: Iterable[Kernel]) -> str:
    """One translation unit with each of these kernels once, ordered by name."""
    texts = {kernel.name: kernel.text for kernel in kernels}
    return "\n".join([prelude(), *(texts[name] for name in sorted(texts))])
