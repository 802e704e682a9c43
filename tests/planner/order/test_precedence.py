"""What is live in an order, against a simulation of every order of a few steps."""

import itertools

import pytest
from planner.order.orders import is_legal
from planner.order.test_order import random_problem


def waits_for(problem):
    """The steps that each step waits for, from reads and arcs alone."""
    steps = problem.steps
    waits = [set() for _ in range(len(steps))]
    for producer, step in itertools.permutations(range(len(steps)), 2):
        if set(steps.outputs[producer]) & set(steps.inputs[step]):
            waits[step].add(producer)
    for first, second in problem.arcs:
        waits[second].add(first)
    return waits


def simulated(problem, order):
    """Bytes during each step: a set of live values, from which each goes after its last reader."""
    steps = problem.steps
    made = {value for outputs in steps.outputs for value in outputs}
    reads = {value: [] for value in range(len(steps.bytes))}
    for place, step in enumerate(order):
        for value in steps.inputs[step]:
            reads[value].append(place)
    outside = set(reads) - made
    live = {value for value in outside if reads[value] or value in steps.live_out}
    levels = []
    for place, step in enumerate(order):
        dying = {
            value
            for value in steps.inputs[step]
            if reads[value][-1] == place and value not in steps.live_out
        }
        taken, saved = set(), 0
        for output, operand in steps.overwrites[step]:
            if operand in dying and not {output, operand} & taken:
                taken |= {output, operand}
                saved += steps.bytes[output]
        beside = live | set(steps.outputs[step])
        levels.append(problem.base + steps.total(beside) + steps.workspace[step] - saved)
        live = {
            value
            for value in beside - dying
            if value in steps.live_out or any(later > place for later in reads[value])
        }
    return levels


@pytest.mark.parametrize("seed", range(60))
def test_bytes_of_every_legal_order_of_up_to_six_steps(seed):
    problem = random_problem(seed, 6)
    waits = waits_for(problem)
    assert [set(before) for before in problem.predecessors] == waits
    legal = 0
    for order in itertools.permutations(range(len(problem))):
        if is_legal(problem, order):
            legal += 1
            assert problem.profile(order) == simulated(problem, order)
    assert legal >= 1


@pytest.mark.parametrize("seed", range(20))
def test_a_part_of_an_order_is_a_problem_of_its_own(seed):
    """The middle steps, reordered, have in the whole the bytes that they have alone."""
    problem = random_problem(seed, 7)
    count = len(problem)
    low, high = count // 4, count - count // 4
    steps = problem.steps
    chosen = list(range(low, high))
    touched = {v for s in chosen for v in (*steps.inputs[s], *steps.outputs[s])}
    later = {v for s in range(high, count) for v in steps.inputs[s]} | steps.live_out
    earlier = {v for s in range(low) for v in steps.outputs[s]}
    outside = {v for v in range(len(steps.bytes)) if steps.producer[v] < 0}
    read = {v for s in range(low, count) for v in steps.inputs[s]} | steps.live_out
    base = problem.base + sum(steps.bytes[v] for v in (earlier | outside) - touched if v in read)
    inner = problem.restricted(chosen, later, base)
    for order in itertools.islice(itertools.permutations(range(len(chosen))), 200):
        if is_legal(inner, order):
            whole = [*range(low), *(chosen[index] for index in order), *range(high, count)]
            assert is_legal(problem, whole)
            assert inner.profile(order) == problem.profile(whole)[low:high]
