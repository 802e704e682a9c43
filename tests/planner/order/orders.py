"""The rule of an order of steps."""


def is_legal(problem, order):
    """Return True if the order has every step once, after its predecessors."""
    place = {step: index for index, step in enumerate(order)}
    return sorted(order) == list(range(len(problem))) and all(
        place[first] < place[step]
        for step, firsts in enumerate(problem.predecessors)
        for first in firsts
    )
