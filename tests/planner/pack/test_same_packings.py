"""Packings change only on purpose: what every method finds, and at what work, is written down."""

import hashlib
import itertools
import random

import pytest
from properties.small_packings import problem_of

from graphc.planner.pack.orders import basic_orders
from graphc.planner.pack.phases import Packer

STEPS = 90
"""Best fit, orders and the squeaky wheel, then searches: of all methods some."""


def rows(seed, count):
    """(first, duration, size) of many buffers that are live together."""
    chance = random.Random(seed)
    return [
        (chance.randrange(30), chance.randint(1, 15), chance.randint(1, 100)) for _ in range(count)
    ]


PROBLEMS = {
    "few": (rows(1, 14), None),
    "some": (rows(2, 30), None),
    "many": (rows(3, 60), None),
    "pinned": (rows(4, 30), {0: 0, 7: 150, 19: 400}),
}


def told(problem):
    """Work, height and offsets after each step towards a height that is just above the bound."""
    packer = Packer(problem)
    found = []
    packer.wanted = packer.bound + 1
    for _ in itertools.islice(packer.steps, STEPS):
        found.append((packer.work, packer.height, packer.offsets.tolist()))
    digest = hashlib.sha256(repr(found).encode()).hexdigest()[:16]
    return f"height {packer.height}, bound {packer.bound}, work {packer.work}, steps {digest}"


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_same_problem_is_packed_the_same_step_by_step(golden, name):
    given, pinned = PROBLEMS[name]
    golden(f"packing-{name}.txt", f"{told(problem_of(given, pinned))}\n")


def test_orders_are_placed_into_the_tightest_gap_and_into_the_first(monkeypatch):
    """Each order of buffers in both ways, one after the other."""
    tried, place = [], Packer._in_order

    def noted(self, order, tightest):
        tried.append((order.tolist(), tightest))
        return place(self, order, tightest)

    monkeypatch.setattr(Packer, "_in_order", noted)
    problem = problem_of(PROBLEMS["some"][0])
    packer = Packer(problem)
    for _ in itertools.islice(packer.steps, STEPS):
        pass
    orders = [order.tolist() for order in basic_orders(problem)]
    assert tried == [(order, tightest) for order in orders for tightest in (True, False)]
