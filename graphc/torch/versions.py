"""Versions of torch that graphc supports."""

from __future__ import annotations

import re

from graphc.errors import DependencyError, to_install

LOWEST, BEYOND = (2, 9), (2, 16)
"""The first tested version, and the first version after the last tested one."""


def require_torch() -> None:
    """Raise `DependencyError` if torch is missing or its version is not tested."""
    cure = to_install("torch", "torch")
    try:
        from torch import __version__ as found
    except ImportError:
        raise DependencyError(f"graphc.torch requires the package torch; {cure}") from None
    if not LOWEST <= _release(str(found)) < BEYOND:
        raise DependencyError(f"graphc.torch requires torch {supported()}, got {found}; {cure}")


def supported() -> str:
    """Return the range of supported versions in words."""
    lowest, beyond = (".".join(map(str, each)) for each in (LOWEST, BEYOND))
    return f"from {lowest} to below {beyond}"


def is_before(version: str, release: tuple[int, int]) -> bool:
    """Return whether a version, such as ``2.11.0+cpu``, is older than a release."""
    return _release(version) < release


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
