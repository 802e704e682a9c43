"""Chains of steps whose optimum is known in closed form."""

from math import comb

from graphc.planner.problem import Problem, Run


def reversal_chain(length):
    """Griewank and Walther's setting: states of one byte, advanced in place, reversed one by one.

    The first state stays. The backward step of each reads the state in front of it, costs nothing.
    """
    forward = [(), *((i - 1,) for i in range(1, length))]
    backward = [(i, *(() if i == length - 1 else (2 * length - i - 2,))) for i in range(length)][
        ::-1
    ]
    count = 2 * length
    return Problem(
        cost=(0.0, *[1.0] * (length - 1), *[0.0] * length),
        workspace=(0,) * count,
        inputs=(*forward, *backward),
        outputs=tuple((i,) for i in range(count)),
        overwrites=((), *(((i, i - 1),) for i in range(1, length)), *[()] * length),
        bytes=(*[1] * length, *[0] * length),
        once=frozenset([0]),
        live_out=frozenset([0, count - 1]),
        runs=(Run(0, length, count),),
    )


def revolve(length, checkpoints):
    """Forward length that reversing takes with so many checkpoints, the first state's among them.

    Griewank and Walther, "Algorithm 799: revolve", 2000: r n - C(s + r, s + 1), where r is the
    smallest number with n <= C(s + r, s).
    """
    repeats = 0
    while comb(checkpoints + repeats, checkpoints) < length:
        repeats += 1
    return repeats * length - comb(checkpoints + repeats, checkpoints + 1)
