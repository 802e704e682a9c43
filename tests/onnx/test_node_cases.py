"""onnx's tests of single operators: all in scope pass, but for a list that may only shrink."""

from random import Random

import pytest
from onnx_cases.node_tests import (
    built,
    compare,
    data_of,
    excluded,
    node_cases,
    one_of_each,
    run,
)

import graphc
from graphc.errors import GraphcError

IN_SCOPE = 1370
"""Of the 1,884 cases that onnx 1.23 builds."""

MOST_EXCLUDED = 6


def passes(case, **options):
    """Run a case and compare; raises what goes wrong."""
    for arrays, expected in data_of(case):
        network, outputs, feeds = built(case, arrays)
        program = graphc.compile(outputs=outputs, poison=True, **options)
        compare(case, expected, run(network, program, feeds))


def failures(names, **options):
    """Name → what went wrong, of the cases that do not pass."""
    found = {}
    for name in names:
        try:
            passes(node_cases()[name], **options)
        except (GraphcError, AssertionError) as error:
            found[name] = " ".join(str(error).split())[:200]
    return found


def test_one_case_of_each_operator_and_a_twentieth_of_all_pass():
    """Nodes run in the order of the model; other orders are compared below."""
    names = sorted({*one_of_each(), *sorted(set(node_cases()) - set(excluded()))[::20]})
    assert len(one_of_each()) > 150
    assert 20 * len(names) > IN_SCOPE
    assert failures(names, reorder=False, fuse=False) == {}


@pytest.mark.slow
def test_all_cases_in_scope_pass_but_those_listed():
    found = failures(node_cases())
    assert {name: text for name, text in found.items() if name not in excluded()} == {}
    assert sorted(found) == sorted(excluded()), "a case that passes leaves the list"


def test_the_list_of_exclusions_only_shrinks():
    assert len(node_cases()) == IN_SCOPE
    assert len(excluded()) <= MOST_EXCLUDED
    assert set(excluded()) <= set(node_cases())
    assert all(cause.strip() for cause in excluded().values())


VARIANTS = (
    {"allocate": "none"},
    {"allocate": "inplace"},
    {"allocate": "sharing"},
    {"allocate": "packed"},
    {"allocate": "packed", "reorder": False},
    {"allocate": "packed", "fuse": True},
)
"""Ways to compile that must not change a bit."""


def differing(names):
    """Cases and variants whose bits are not those of a plan without any sharing, unpoisoned."""
    found = []
    for name in names:
        case = node_cases()[name]
        for arrays, _ in data_of(case):
            network, outputs, feeds = built(case, arrays)
            plain = run(network, graphc.compile(outputs=outputs, allocate="none"), feeds)
            for options in VARIANTS:
                program = graphc.compile(outputs=outputs, poison=True, **options)
                again = run(network, program, feeds)
                if [a.tobytes() for a in plain] != [a.tobytes() for a in again]:
                    found.append((name, options))
    return found


def test_a_sample_has_the_same_bits_however_it_is_planned():
    names = sorted(set(one_of_each()) - set(excluded()))
    assert differing(Random(0).sample(names, 25)) == []


@pytest.mark.slow
def test_a_third_has_the_same_bits_however_it_is_planned():
    assert differing(sorted(set(node_cases()) - set(excluded()))[::3]) == []
