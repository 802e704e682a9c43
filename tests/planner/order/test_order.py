"""Orders of least peak, against every order there is."""

from itertools import islice
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from planner.order.orders import is_legal
from properties.strategies import examples

from graphc.planner.order import Precedence, least_order
from graphc.planner.order.cuts import Cuts
from graphc.planner.order.exact import least_peak_order
from graphc.planner.order.listing import list_schedule
from graphc.planner.order.windows import improve_windows
from graphc.planner.problem import Problem

pytestmark = pytest.mark.usefixtures("little")


def steps_of(rows, sizes, *, workspace=None, overwrites=None, live_out=()):
    """`Problem` from one row of (inputs, outputs) a step."""
    count = len(rows)
    return Problem(
        cost=(0.0,) * count,
        workspace=tuple(workspace or [0] * count),
        inputs=tuple(tuple(inputs) for inputs, _ in rows),
        outputs=tuple(tuple(outputs) for _, outputs in rows),
        overwrites=tuple(overwrites or [()] * count),
        bytes=tuple(sizes),
        once=frozenset(),
        live_out=frozenset(live_out),
        runs=(),
    )


def random_problem(seed, most):
    """Steps that read earlier values and some from outside, overwrite, and wait for one another."""
    random = Random(seed)
    count = random.randint(1, most)
    sizes = [random.randint(0, 3) for _ in range(random.randint(0, 2))]
    rows, workspace, overwrites = [], [], []
    for _ in range(count):
        near = range(len(sizes))[-12:]
        inputs = random.sample(near, min(len(near), random.randint(0, 3)))
        outputs, pairs = [], []
        for _ in range(random.choice([1, 1, 1, 2, 0])):
            over = random.sample(inputs, random.randint(0, min(len(inputs), 2)))
            alike = [value for value in over if sizes[value] == sizes[over[0]]]
            pairs += [(len(sizes), value) for value in alike]
            outputs.append(len(sizes))
            sizes.append(sizes[alike[0]] if alike else random.randint(0, 9))
        rows.append((inputs, outputs))
        workspace.append(random.randint(0, 4))
        overwrites.append(tuple(pairs))
    live_out = random.sample(range(len(sizes)), min(len(sizes), random.randint(0, 2)))
    steps = steps_of(rows, sizes, workspace=workspace, overwrites=overwrites, live_out=live_out)
    arcs = [sorted(random.sample(range(count), 2)) for _ in range(2)] if count > 1 else []
    return Precedence(steps, tuple(map(tuple, arcs)), random.randint(0, 3))


def problems(most=10):
    return st.builds(random_problem, st.integers(0, 10**6), st.just(most))


MOST_ORDERS = 500


def all_orders(problem):
    """Every order in which no step stands before one that it waits for, where they are few."""
    steps = problem.steps
    waits = [set() for _ in range(len(steps))]
    for first, second in problem.arcs:
        waits[second].add(first)
    for producer, outputs in enumerate(steps.outputs):
        for step, inputs in enumerate(steps.inputs):
            if set(outputs) & set(inputs):
                waits[step].add(producer)

    def longer(order):
        if len(order) == len(steps):
            yield order
        for step in range(len(steps)):
            if step not in order and waits[step] <= set(order):
                yield from longer([*order, step])

    orders = list(islice(longer([]), MOST_ORDERS + 1))
    assume(len(orders) <= MOST_ORDERS)
    return orders


def peak(problem, order):
    return max(problem.profile(order), default=0)


@examples(200)
@given(problems())
def test_no_order_has_a_lower_peak(problem):
    order = least_order(problem)
    assert is_legal(problem, order)
    assert peak(problem, order) == min(peak(problem, other) for other in all_orders(problem))


@examples(100)
@given(problems())
def test_the_exact_search_counts_as_the_steps_do(problem):
    """It finds the least peak just above it, and nothing at it."""
    least = min(peak(problem, order) for order in all_orders(problem))
    found = least_peak_order(problem, least + 1, 10_000)
    assert found is not None
    assert is_legal(problem, found)
    assert peak(problem, found) == least
    assert least_peak_order(problem, least, 10_000) is None


@examples(200)
@given(problems(), st.booleans(), st.integers(-3, 10))
def test_list_schedules_are_legal_and_keep_their_limit(problem, backwards, room):
    given_order = list(range(len(problem)))
    limit = peak(problem, given_order) - room
    order = list_schedule(problem, given_order, limit, backwards)
    if order is None:
        assert room > 0 or not given_order
    else:
        assert is_legal(problem, order)
        assert peak(problem, order) <= limit


@examples(100)
@given(problems(), st.data())
def test_no_order_goes_below_a_cut(problem, data):
    step = data.draw(st.sampled_from(range(len(problem))))
    cut = Cuts(problem).at(step)
    levels = [problem.profile(order)[order.index(step)] for order in all_orders(problem)]
    assert cut.bytes <= min(levels)
    assert step not in cut.before
    assert all(
        first in cut.before
        for other in {step, *cut.before}
        for first in problem.predecessors[other]
    )


@pytest.mark.parametrize("seed", range(10))
def test_long_orders_never_get_worse(seed):
    """Beyond the exact search: windows alone, and all methods."""
    problem = random_problem(seed, 150)
    given_order = list(range(len(problem)))
    for order in (improve_windows(problem, given_order), least_order(problem)):
        assert is_legal(problem, order)
        assert peak(problem, order) <= peak(problem, given_order)


def chain_with_gradients(layers):
    """Each backward step leaves a gradient of 8 bytes beside its 1 byte, which an update takes."""
    rows = [([], [0]), *(([i - 1], [i]) for i in range(1, layers))]
    sizes = [2] * layers
    value = layers
    above = None
    for layer in reversed(range(layers)):
        delta, gradient = value, value + 1
        rows.append(([layer, *([] if above is None else [above])], [delta]))
        rows.append(([delta], [gradient]))
        sizes += [1, 8]
        above, value = delta, value + 2
    for number in range(layers):
        rows.append(([layers + 2 * number + 1], []))
    return Precedence(steps_of(rows, sizes))


def test_updates_move_up_and_gradients_wait():
    """Given with all updates at the end, gradients live together; two at most have to."""
    problem = chain_with_gradients(40)
    order = least_order(problem)
    assert peak(problem, list(range(len(problem)))) > 320
    assert peak(problem, order) == 2 * 40 + 1


def test_branches_run_by_their_own_peaks():
    """Liu: the branch with the larger difference of peak and residue first."""
    rows = [([], [0]), ([0], [1]), ([1], [2]), ([0], [3]), ([3], [4]), ([2, 4], [5])]
    problem = Precedence(steps_of(rows, [1, 10, 5, 30, 1, 1]))
    assert peak(problem, [0, 1, 2, 3, 4, 5]) == 36
    assert least_order(problem) == [0, 3, 4, 1, 2, 5]
    assert peak(problem, least_order(problem)) == 32


def test_nothing_to_order():
    assert least_order(Precedence(steps_of([], []))) == []
    assert least_order(Precedence(steps_of([([], [0])], [7]))) == [0]
