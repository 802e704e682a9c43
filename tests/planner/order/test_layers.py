"""Layers that recur over time: found as what they are, and run one after another."""

import itertools
from dataclasses import replace
from random import Random

import networkx
import pytest
from planner.order.orders import is_legal
from planner.order.test_order import random_problem, steps_of

from graphc.planner.order import Precedence, as_late_as_needed, components, layer_by_layer
from graphc.planner.problem import Run


@pytest.mark.parametrize("seed", range(100))
def test_components_reach_each_other_and_stand_in_topological_order(seed):
    random = Random(seed)
    count = random.randint(1, 12)
    before = [
        random.sample(range(vertex), min(vertex, random.randint(0, 2))) for vertex in range(count)
    ]
    groups = [random.sample(range(count), random.randint(1, min(3, count))) for _ in range(2)]
    edges = [(first, vertex) for vertex, firsts in enumerate(before) for first in firsts]
    edges += [pair for group in groups for pair in itertools.permutations(group, 2)]
    graph = networkx.DiGraph(edges)
    graph.add_nodes_from(range(count))
    reached = {vertex: networkx.descendants(graph, vertex) | {vertex} for vertex in graph}
    found = components(before, groups)
    assert sorted(itertools.chain(*found)) == list(range(count))
    for one in found:
        for a, b in itertools.product(one, repeat=2):
            assert b in reached[a]
    for earlier, later in itertools.combinations(found, 2):
        assert not reached[later[0]] & set(earlier)


def unrolled(layers, times, outputs=0):
    """A recurrent network's step: forward over time and layers, backward the other way round.

    Layer l at time t reads its own result of t - 1 and that of l - 1. Its gradient frees its result
    and is added to the sum of its parameter, of 100 bytes, which an update reads at the end.
    """
    rows, sizes, overwrites = [], [], []

    def value(size):
        sizes.append(size)
        return len(sizes) - 1

    def step(reads, makes, over=()):
        rows.append((reads, makes))
        overwrites.append(tuple(over))

    parameters = [value(0) for _ in range(layers)]
    first = [value(1) for _ in range(times)]
    results = {(-1, time): first[time] for time in range(times)}
    for time, layer in itertools.product(range(times), range(layers)):
        reads = [parameters[layer], results[layer - 1, time]]
        reads += [results[layer, time - 1]] if time else []
        results[layer, time] = value(10)
        step(reads, [results[layer, time]])
    loss = [value(outputs) for _ in range(times)] if outputs else []
    for time, made in enumerate(loss):
        step([results[layers - 1, time]], [made])
    boundary = len(rows)
    passed, sums = {}, {}
    for time, made in enumerate(loss):
        passed[layers, time, 1] = value(2)
        step([made], [passed[layers, time, 1]])
    for time, layer in itertools.product(reversed(range(times)), reversed(range(layers))):
        # What comes back from later and from above is added before.
        back = [
            passed[key] for key in ((layer, time + 1, 0), (layer + 1, time, 1)) if key in passed
        ]
        own = value(10)
        step([results[layer, time], *back], [own], [(own, results[layer, time])])
        for way in range(2):
            passed[layer, time, way] = value(2)
            step([own, parameters[layer]], [passed[layer, time, way]])
        total, before = value(100), [sums[layer]] if layer in sums else []
        step([own, results[layer - 1, time], *before], [total], [(total, v) for v in before])
        sums[layer] = total
        if not time:
            step([total, parameters[layer]], [])
    run = Run(0, boundary, len(rows))
    return replace(steps_of(rows, sizes, overwrites=overwrites), runs=(run,)), parameters


def test_layers_of_an_unrolled_network_run_one_after_another():
    steps, parameters = unrolled(3, 4)
    order = layer_by_layer(Precedence(steps), parameters, at_once=True)
    assert is_legal(Precedence(steps), order)
    boundary = steps.runs[0].boundary
    forward = [next(p for p in parameters if p in steps.inputs[step]) for step in order[:boundary]]
    assert forward == [p for p in parameters for _ in range(4)]
    updates = [order.index(step) for step in range(boundary, len(steps)) if not steps.outputs[step]]
    # The last layer is updated before the gradient of the next one is opened, and so on.
    opened = [
        order.index(step)
        for step in range(boundary, len(steps))
        if steps.total(steps.outputs[step]) == 100 and not steps.overwrites[step]
    ]
    assert sorted([*updates, *opened]) == [
        place for pair in zip(opened, updates, strict=True) for place in pair
    ]


def test_the_order_by_layers_takes_fewer_bytes_where_gradients_are_wide():
    steps, parameters = unrolled(4, 6)
    problem = Precedence(steps)
    given, found = range(len(steps)), layer_by_layer(problem, parameters, at_once=True)
    # Four sums of 100 bytes at once in the order given, one at a time by layers.
    assert max(problem.profile(given)) - max(problem.profile(found)) > 200


def test_sums_of_gradients_may_wait_until_all_layers_have_run():
    steps, parameters = unrolled(3, 4)
    order = layer_by_layer(Precedence(steps), parameters, at_once=False)
    assert is_legal(Precedence(steps), order)
    made = [steps.total(steps.outputs[step]) for step in order[steps.runs[0].boundary :]]
    # Three layers and four times; nothing but a sum asks for the gradient of the first of both.
    assert made[: made.index(100)].count(10) == 11
    # Then one parameter after another: four sums and the update that they are for.
    assert [size for size in made if size in (0, 100)] == [100, 100, 100, 100, 0] * 3


def test_outputs_wait_until_their_gradients_ask_for_them():
    steps, parameters = unrolled(3, 4, outputs=70)
    order = layer_by_layer(Precedence(steps), parameters, at_once=False)
    assert is_legal(Precedence(steps), order)
    boundary = steps.runs[0].boundary
    outputs = [step for step in range(boundary) if steps.total(steps.outputs[step]) == 70]
    assert len(outputs) == 4
    for step in outputs:  # what reads an output stands right behind it
        after = order[order.index(step) + 1]
        assert set(steps.outputs[step]) <= set(steps.inputs[after])
    # Repeated steps belong to the forward pass of a plan that makes values again.
    eager = layer_by_layer(Precedence(steps), parameters, at_once=True)
    assert sorted(eager[:boundary]) == list(range(boundary))
    assert steps.peak(order) + 2 * 70 <= steps.peak(eager)
    # Or run once behind the turn, with all that layers need in front of it.
    late = as_late_as_needed(Precedence(steps), eager)
    assert is_legal(Precedence(steps), late)
    first = next(place for place, step in enumerate(late) if step >= boundary)
    assert set(range(boundary)) - set(late[:first]) <= set(outputs)
    assert steps.peak(late) + 2 * 70 <= steps.peak(eager)
    backward = [[step for step in each if step >= boundary] for each in (eager, late)]
    assert backward[0] == backward[1]


def test_without_a_layer_that_recurs_there_is_no_order():
    steps, parameters = unrolled(3, 1)
    assert layer_by_layer(Precedence(steps), parameters, at_once=True) is None
    steps, parameters = unrolled(3, 4)
    assert layer_by_layer(Precedence(steps), [], at_once=True) is None


def test_orders_of_random_steps_are_legal():
    found = 0
    for seed in range(600):
        problem = random_problem(seed, 14)
        steps = problem.steps
        boundary = Random(seed).randint(0, len(steps) // 2)
        steps = replace(steps, runs=(Run(0, boundary, len(steps)),))
        problem = replace(problem, steps=steps)
        # Any values may be read together: groups are what a caller says.
        values = Random(seed).sample(range(len(steps.bytes)), min(4, len(steps.bytes)))
        for at_once in (False, True):
            order = layer_by_layer(problem, values, at_once)
            assert order is None or is_legal(problem, order)
            found += order is not None
    assert found > 50


def test_an_update_of_the_forward_pass_stays_behind_all_that_read_what_it_replaces():
    steps, parameters = unrolled(2, 3)
    boundary = steps.runs[0].boundary
    # A step that reads nothing but what the first forward step makes, and that two others precede.
    inputs = (*steps.inputs[:boundary], (steps.outputs[0][0],), *steps.inputs[boundary:])
    fields = {name: getattr(steps, name) for name in ("cost", "workspace", "outputs", "overwrites")}
    empty = {"cost": 0.0, "workspace": 0, "outputs": (), "overwrites": ()}
    widened = {
        name: (*values[:boundary], empty[name], *values[boundary:])
        for name, values in fields.items()
    }
    run = Run(0, boundary + 1, len(steps) + 1)
    steps = replace(steps, inputs=inputs, runs=(run,), **widened)
    problem = Precedence(steps, ((boundary - 1, boundary), (boundary - 2, boundary)))
    order = layer_by_layer(problem, parameters, at_once=True)
    assert is_legal(problem, order)
