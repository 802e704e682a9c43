"""Einstein summation, lowered to transposes, reshapes, matrix products and sums.

Terms are contracted two at a time, in the order of NumPy's greedy search. A matrix product sums
over the labels that both terms have and that are no longer needed. Other labels that both terms
have are batch axes of the product.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError, quoted
from graphc.ir.builder import as_value
from graphc.ir.graph import Value
from graphc.ir.types import bool_
from graphc.ops.elementwise import mul, same_dtype
from graphc.ops.indexing import slice_
from graphc.ops.matmul import matmul
from graphc.ops.reduce import sum
from graphc.ops.shape import reshape, transpose

Labels = tuple[str, ...]
"""One label per axis: letters, or for the axes of an ellipsis their number from the end."""

_TERM = re.compile(r"[A-Za-z]*(\.\.\.[A-Za-z]*)?")


@dataclass(frozen=True, slots=True)
class _Term:
    """A value whose axes have distinct labels."""

    value: Value
    labels: Labels

    def ordered(self, labels: Iterable[str]) -> Value:
        """Return the value with its axes in this order, and axes of 1 for missing labels."""
        wanted = tuple(labels)
        own = [label for label in wanted if label in self.labels]
        value = transpose(self.value, [self.labels.index(label) for label in own])
        extents = dict(zip(self.labels, self.value.shape, strict=True))
        return reshape(value, [extents.get(label, 1) for label in wanted])

    def without(self, labels: Iterable[str]) -> _Term:
        """Return the value summed over some of its labels."""
        gone = set(labels)
        axes = [axis for axis, label in enumerate(self.labels) if label in gone]
        kept = tuple(label for label in self.labels if label not in gone)
        return _Term(sum(self.value, axes), kept) if axes else self


def einsum(*given: str | Value | Sequence[object]) -> Value:
    """Compute sums of products of operands in Einstein notation, as `numpy.einsum` does.

    ``einsum("bij,bjk->bik", a, b)`` is a batch of matrix products. ``...`` denotes further axes,
    which broadcast. A label twice in one term takes the diagonal. Without ``->`` the result has the
    labels that occur once, in alphabetical order. Labels may also be lists of numbers: ``einsum(a,
    [0, 1, 2], b, [0, 2, 3], [0, 1, 3])``. Large products become matrix products. The operands have
    one dtype.

    Raises `OptionError` for an invalid notation, `ShapeError` for extents that differ, and
    `DTypeError` for bool or several dtypes.
    """
    subscripts, operands = _notation(given)
    terms, output = _parsed(subscripts, operands)
    if same_dtype(*(value.type for value in operands)) == bool_:
        raise DTypeError("einsum: bool has no arithmetic; convert with graphc.cast")
    extents = _extents(subscripts, terms)
    found = [_plain(term, extents) for term in terms]
    for chosen in _path(found, output):
        found.append(_joined([found.pop(i) for i in sorted(chosen, reverse=True)], found, output))
    (last,) = found
    return last.without(set(last.labels) - set(output)).ordered(output)


def _notation(given: Sequence[object]) -> tuple[str, list[Value]]:
    """Return the subscripts as text, and the operands."""
    if given and isinstance(given[0], str):
        subscripts, operands = given[0].replace(" ", ""), given[1:]
    else:
        count = len(given) // 2
        operands = given[0 : 2 * count : 2]
        subscripts = ",".join(map(_letters, given[1 : 2 * count : 2]))
        if len(given) % 2:
            subscripts += "->" + _letters(given[-1])
    if not operands:
        raise OptionError("einsum: give subscripts and at least one operand")
    return subscripts, [as_value("einsum", value) for value in operands]


def _letters(numbers: object) -> str:
    """Convert a list of numbers, which may include an ellipsis, to letters."""
    letters = string.ascii_uppercase + string.ascii_lowercase
    if not isinstance(numbers, Sequence) or isinstance(numbers, str):
        raise OptionError(f"einsum: labels must be a list of numbers, got {quoted(numbers)}")
    found = []
    for number in numbers:
        is_number = isinstance(number, int | np.integer)
        if number is not Ellipsis and not (is_number and 0 <= number < len(letters)):
            raise OptionError(
                f"einsum: a label must be a number from 0 to 51 or ..., got {quoted(number)}"
            )
        found.append("..." if number is Ellipsis else letters[number])
    return "".join(found)


def _parsed(
    subscripts: str, operands: Sequence[Value]
) -> tuple[list[tuple[Value, Labels]], Labels]:
    """Return each operand with the labels of its axes, and the labels of the result."""
    listed, arrow, result = subscripts.partition("->")
    texts = listed.split(",")
    wrong = next((text for text in (*texts, result) if not _TERM.fullmatch(text)), None)
    if wrong is not None:
        raise OptionError(
            f"einsum: {wrong!r} in {subscripts!r} is not a valid term; a term has letters and at "
            "most one ..., and commas and -> separate terms"
        )
    if len(texts) != len(operands):
        raise OptionError(
            f"einsum: {subscripts!r} has {len(texts)} terms for {len(operands)} operands"
        )
    terms = [
        (value, _labels(text, value.type.rank, f"{subscripts!r} for {value.type}"))
        for text, value in zip(texts, operands, strict=True)
    ]
    counts = Counter(label for _, labels in terms for label in labels)
    far = sorted((label for label in counts if label.isdigit()), key=int, reverse=True)
    if not arrow:
        once = sorted(label for label in counts if label.isalpha() and counts[label] == 1)
        return terms, (*far, *once)
    rank = len(result.replace("...", "")) + (len(far) if "..." in result else 0)
    output = _labels(result, rank, subscripts)
    twice = len(set(output)) != len(output)
    if twice or not set(output) <= set(counts) or not set(far) <= set(output):
        raise OptionError(
            f"einsum: the result {result!r} of {subscripts!r} must use labels of the terms, each "
            "at most once, and the ellipsis if a term has one"
        )
    return terms, output


def _labels(text: str, rank: int, where: str) -> Labels:
    """Return the labels of a term for a tensor of that rank."""
    before, dots, behind = text.partition("...")
    far = rank - len(before) - len(behind)
    if far < 0 or (far and not dots):
        raise ShapeError(
            f"einsum: a term must have one letter per axis, or an ellipsis, got {where}"
        )
    return (*before, *map(str, reversed(range(far))), *behind)


def _extents(subscripts: str, terms: Sequence[tuple[Value, Labels]]) -> dict[str, int]:
    """Return the extent of each label; an extent of 1 broadcasts."""
    extents: dict[str, int] = {}
    for value, labels in terms:
        for label, extent in zip(labels, value.shape, strict=True):
            known = extents.setdefault(label, extent)
            if extent not in (1, known) and known != 1:
                raise ShapeError(
                    f"einsum: a label of {subscripts!r} has two extents, {known} and {extent}; "
                    f"got {', '.join(str(value.type) for value, _ in terms)}"
                )
            extents[label] = max(known, extent)
    return extents


def _plain(term: tuple[Value, Labels], extents: dict[str, int]) -> _Term:
    """Return a term without repeated labels, and without axes that broadcast."""
    value, labels = term
    kept = [
        axis for axis, label in enumerate(labels) if value.shape[axis] == extents[label]
    ]  # fmt: skip
    value = reshape(value, [value.shape[axis] for axis in kept])
    labels = tuple(labels[axis] for axis in kept)
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        rest = [axis for axis in range(len(labels)) if axis not in (first, second)]
        square = transpose(value, [*rest, first, second])
        flat = reshape(square, (*square.shape[:-2], square.shape[-1] ** 2))
        value = slice_(flat, (Ellipsis, slice(None, None, square.shape[-1] + 1)))
        labels = (*(labels[axis] for axis in rest), label)
    return _Term(value, labels)


def _path(terms: Sequence[_Term], output: Labels) -> list[tuple[int, ...]]:
    """Return the indices of the terms to join in each step.

    Their product is appended to the other terms.
    """
    if len(terms) < 3:
        return [tuple(range(len(terms)))] if len(terms) == 2 else []
    names = list(dict.fromkeys(label for term in terms for label in term.labels))
    number = {label: i for i, label in enumerate(names)}
    listed: list[Any] = []
    for term in terms:
        listed.append(np.broadcast_to(np.float32(0), term.value.shape))
        listed.append([number[label] for label in term.labels])
    listed.append([number[label] for label in output])
    _, *path = np.einsum_path(*listed, optimize="greedy")[0]
    return path


def _joined(chosen: Sequence[_Term], others: Sequence[_Term], output: Labels) -> _Term:
    """Return the product of the chosen terms, summed over labels not in `others` or `output`."""
    last, *rest = chosen
    needed = set(output).union(*(term.labels for term in others))
    for number, term in enumerate(reversed(rest)):
        waiting = rest[: len(rest) - number - 1]
        last = _product(last, term, needed.union(*(each.labels for each in waiting)))
    return last


def _product(b: _Term, a: _Term, needed: set[str]) -> _Term:
    """Return a · b, summed over the labels that are not in `needed`."""
    a = a.without(set(a.labels) - set(b.labels) - needed)
    b = b.without(set(b.labels) - set(a.labels) - needed)
    both = [label for label in a.labels if label in b.labels]
    batch = [label for label in both if label in needed]
    inner = [label for label in both if label not in needed]
    rows = [label for label in a.labels if label not in both]
    columns = [label for label in b.labels if label not in both]
    labels = (*batch, *rows, *columns)
    if not inner:
        return _Term(mul(a.ordered(labels), b.ordered(labels)), labels)
    if a.value.type.dtype.kind != "float":
        whole = (*labels, *inner)
        return _Term(mul(a.ordered(whole), b.ordered(whole)), whole).without(inner)
    left, flip_a = _matrix(a, batch, rows, inner)
    right, flip_b = _matrix(b, batch, columns, inner)
    found = matmul(left, right, flip_a, not flip_b)
    extents = dict(zip((*a.labels, *b.labels), (*a.value.shape, *b.value.shape), strict=True))
    return _Term(reshape(found, [extents[label] for label in labels]), labels)


def _matrix(
    term: _Term, batch: Sequence[str], own: Sequence[str], inner: Sequence[str]
) -> tuple[Value, bool]:
    """Return a term as matrices (own labels, inner labels), and whether they are transposed.

    Inner labels are those that the product sums. Transposed matrices have them first, so that the
    last axis of the term stays last.
    """
    flip = term.labels[-1] in own
    parts = (inner, own) if flip else (own, inner)
    value = term.ordered([*batch, *parts[0], *parts[1]])
    shape, first = value.shape, len(batch) + len(parts[0])
    rows, columns = math.prod(shape[len(batch) : first]), math.prod(shape[first:])
    return reshape(value, (*shape[: len(batch)], rows, columns)), flip
