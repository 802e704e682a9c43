"""Files with random changes are refused, or are plans that train right."""

import json
import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plans.changed_files import sealed
from properties.oracle import run_plain
from properties.strategies import examples
from properties.test_plans import bits

import graphc as g
from graphc.errors import GraphcError
from graphc.plans.plan_file import checked_plan


def places(content, path=()):
    """Paths of all that can be changed."""
    if isinstance(content, dict):
        inner = content.items()
    elif isinstance(content, list):
        inner = enumerate(content)
    else:
        inner = ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


STRANGE = [None, True, "", "view", "new", "%0", [], {}, -1, 0, 1, 4, 256, 1.5, 2**53, 10**30, 1e300]


def mutate(content, random):
    """Change, add or remove one thing anywhere."""
    *path, key = random.choice(list(places(content)))
    holder = content
    for step in path:
        holder = holder[step]
    old = holder[key]
    match random.randrange(6):
        case 0:
            holder[key] = random.choice(STRANGE)
        case 1 if isinstance(holder, dict):
            holder[f"{key}."] = holder.pop(key)
        case 2:
            del holder[key]
        case 3 if isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), old)
        case 4:
            others = list(holder.values()) if isinstance(holder, dict) else holder
            holder[key] = random.choice(others)
        case _ if type(old) is int:
            holder[key] = old + random.choice([-256, -4, -1, 1, 4, 256, old])
        case _ if isinstance(old, str) and old:
            at = random.randrange(len(old))
            holder[key] = old[:at] + random.choice(list("0123 ,%@=()[]{}'m.-_é")) + old[at + 1 :]
        case _:
            holder[key] = random.choice(STRANGE)


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
