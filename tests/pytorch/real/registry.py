"""The registry of real classes: each name maps to a function that returns a new case."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pytorch.real import adapters, convolutional, diffusion, language, perception
from pytorch.real.cases import Case

CLASSES: dict[str, Callable[[], Case]] = {
    **language.CLASSES,
    **perception.CLASSES,
    **convolutional.CLASSES,
    **diffusion.CLASSES,
    **adapters.CLASSES,
}


class Refusal(NamedTuple):
    """The place in the error (a regular expression), and the reason in words."""

    place: str
    reason: str


REFUSED = {
    "torchvision FasterRCNN": Refusal(
        r"rpn\.py:\d+ in filter_proposals of submodule rpn, a line of the library torchvision",
        "the number of boxes depends on data",
    ),
    "HubertForCTC": Refusal("size that is unknown", "random masks select rows"),
}
"""Classes that cannot be planned; a test fails if one can."""
