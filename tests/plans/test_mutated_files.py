"""Files with random changes are refused, or are plans that train right."""

import itertools
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans.changed_files import Text, planned, sealed
from properties.oracle import run_plain
from properties.strategies import examples
from properties.test_plans import bits
from robustness.mutations import mutate

import graphc as g
from graphc.errors import GraphcError
from graphc.plans.plan_file import checked_plan


@pytest.fixture(scope="module")
def text():
    """Of a plan for NumPy's kernels, which a run without a plan uses, too."""
    return Text(planned(kernels="numpy").to_json())


def trains_right(found):
    """Whether a program of the plan, freed bytes NaN, equals a run without any plan."""
    rng = np.random.default_rng(1)
    feed = {}
    for source in found.graph.inputs:
        if source.type.elements > 10**6:
            return True  # larger than what this test runs
        drawn = rng.random(source.shape) * (source.type.dtype.kind == "float")
        feed[source.name] = drawn.astype(source.type.dtype.numpy)
    wanted, states = run_plain(found.graph, [feed])
    program = g.Program(found, poison=True)
    outputs = program.step(feed)
    same = {k: bits(v) for k, v in outputs.items()} == {k: bits(v) for k, v in wanted[0].items()}
    return same and {k: bits(v) for k, v in program.states.items()} == {
        k: bits(v) for k, v in states.items()
    }


@examples(200)
@given(st.integers(0, 2**32), st.integers(1, 3))
def test_a_mutated_file_is_an_error_or_the_same_plan(text, seed, count):
    content, chance = json.loads(text), random.Random(seed)
    for _ in range(count):
        mutate(content, chance)
    try:
        found = checked_plan(json.dumps(content))
    except GraphcError:
        return
    assert found.to_json().splitlines()[:-2] == text.splitlines()[:-2]


@examples(200)
@given(st.integers(0, 2**32), st.sampled_from(["graph", "buffers", "placements", "workspaces"]))
def test_a_mutated_layout_is_an_error_or_trains_right(text, seed, part):
    """With the checksum of the changed content: only checks of meaning are left."""
    content, chance = json.loads(text), random.Random(seed)
    mutate(content[part], chance)
    try:
        found = checked_plan(sealed(content))
    except GraphcError:
        return
    assert trains_right(found)


def test_buffers_of_one_size_that_change_places_are_refused_or_train_right(text):
    """Some are accepted: the property above does not hold by refusing everything."""
    original, verdicts = json.loads(text), set()
    pairs = itertools.combinations(range(len(original["buffers"])), 2)
    sizes = [-(-buffer["bytes"] // 256) for buffer in original["buffers"]]
    for one, other in [pair for pair in pairs if sizes[pair[0]] == sizes[pair[1]]][::37]:
        content = json.loads(text)
        a, b = content["buffers"][one], content["buffers"][other]
        a["offset"], b["offset"] = b["offset"], a["offset"]
        try:
            found = checked_plan(sealed(content))
        except GraphcError:
            verdicts.add("refused")
        else:
            assert trains_right(found)
            verdicts.add("accepted" if content != original else "the same")
    assert verdicts >= {"accepted", "refused"}
