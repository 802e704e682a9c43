"""Tapes with a known optimum, and from problems."""

from math import comb

from graphc.planning.steps import Run, Tape


def reversal_chain(steps):
    """Griewank and Walther's setting: states of one byte, advanced in place, reversed one by one.

    The first state stays. The backward step of each reads the state in front of it, costs nothing.
    """
    forward = [(), *((i - 1,) for i in range(1, steps))]
    backward = [(i, *(() if i == steps - 1 else (2 * steps - i - 2,))) for i in range(steps)][::-1]
    count = 2 * steps
    return Tape(
        cost=(0.0, *[1.0] * (steps - 1), *[0.0] * steps),
        workspace=(0,) * count,
        inputs=(*forward, *backward),
        outputs=tuple((i,) for i in range(count)),
        overwrites=((), *(((i, i - 1),) for i in range(1, steps)), *[()] * steps),
        bytes=(*[1] * steps, *[0] * steps),
        once=frozenset([0]),
        held=frozenset([0, count - 1]),
        runs=(Run(0, steps, count),),
    )


def revolve(steps, checkpoints):
    """Forward steps that reversing takes with so many checkpoints, the first state's among them.

    Griewank and Walther, "Algorithm 799: revolve", 2000: r n - C(s + r, s + 1), where r is the
    smallest number with n <= C(s + r, s).
    """
    repeats = 0
    while comb(checkpoints + repeats, checkpoints) < steps:
        repeats += 1
    return repeats * steps - comb(checkpoints + repeats, checkpoints + 1)
