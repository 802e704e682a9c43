"""Graphs with copies to the host at random places: a value leaves, comes back, and is read."""

from dataclasses import dataclass

from graphc.ir.builder import in_phase
from graphc.ir.graph import State
from graphc.ir.rewrite import Rewriter
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.ops.host_copy import begin_copy_to_device, begin_copy_to_host, finish_copy


@dataclass
class Trip:
    """Copies of one value. Places are numbers of nodes of the graph, before which a node is put."""

    value: object
    begin: int
    end: int
    fetches: list[tuple[int, int]]


def begin_of(graph, value):
    return 0 if value.node is None else graph.position[value.node] + 1


def may_leave(plan, value):
    """Return True if the elements of a value have bytes of their own."""
    strides = plan.placements[value].strides or ()
    return all(stride or n == 1 for n, stride in zip(value.shape, strides, strict=False))


def last_place(graph, value):
    """The last place at which a value's bytes still hold it: states are updated."""
    root = graph.roots[value]
    updates = [
        graph.position[node]
        for node in graph.nodes
        if isinstance(root, State) and root in node.replaced.values()
    ]
    return min(updates, default=len(graph.nodes))


def random_trips(plan, random, count):
    graph = plan.graph
    values = [value for value in graph.values if may_leave(plan, value)]
    trips = []
    for value in random.sample(values, min(count, len(values))):
        first, last = begin_of(graph, value), last_place(graph, value)
        if first > last:
            continue
        begin, end = sorted(random.choices(range(first, last + 1), k=2))
        places = sorted(random.choices(range(end, len(graph.nodes) + 1), k=2 * random.randrange(4)))
        trips.append(Trip(value, begin, end, list(zip(places[::2], places[1::2], strict=True))))
    return trips


def with_trips(graph, trips):
    """The graph with these copies. From the end of a fetch on, nodes read what was fetched."""
    rewriter, there = Rewriter(graph), {}
    at = {}  # place → what to do there, in order
    for number, trip in enumerate(trips):
        at.setdefault(trip.begin, []).append((number, "out"))
        at.setdefault(trip.end, []).append((number, "outside"))
        for begin, end in trip.fetches:
            at.setdefault(begin, []).append((number, "in"))
            at.setdefault(end, []).append((number, "inside"))
    for place in range(len(graph.nodes) + 1):
        for number, what in at.get(place, ()):
            value = trips[number].value
            with in_phase("forward" if what.startswith("out") else "gradient"):
                if what == "out":  # of the value itself, or of what was fetched before
                    there[number] = begin_copy_to_host(rewriter.value(value))
                elif what == "outside":
                    there[number] = finish_copy(there[number])
                elif what == "in":
                    there[number, "in"] = begin_copy_to_device(there[number])
                else:
                    there[number, "in"] = finish_copy(there[number, "in"])
            key = number if what.startswith("out") else (number, "in")
            rewriter.add(there[key].producer)
            if what == "inside":
                rewriter.stand((value,), (there[key],))
        if place == len(graph.nodes):
            break
        node = graph.nodes[place]
        states = {
            s: rewriter.standing.pop(s) for s in node.replaced.values() if s in rewriter.standing
        }
        rewriter.put(node, rewriter.moved(node))
        rewriter.standing.update(states)
    found = rewriter.result()
    verify(found)
    return found


def copied(plan, trips, strategy="packed"):
    """The plan of a graph with these copies."""
    graph = with_trips(plan.graph, trips)
    return Allocation(graph, plan.target, plan.alignment).plan(strategy, plan.recompute)


def randomly_copied(plan, random, count=4, strategy="packed"):
    return copied(plan, random_trips(plan, random, count), strategy)
