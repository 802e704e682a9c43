"""A small LSTM, whose cheapest plans can be proven: which is weak, what is found or the bound?

Of unrolled networks little is proven (budgets.py --wide). Here are 8 steps of one layer or more, in
steps coarse enough for CP-SAT of OR-tools: sizes in units of a quarter of a hidden state, where one
layer's sums of gradients weigh as much beside all maps as in the network of 64 steps and 4 layers;
costs in units of 0.1 ms by the cost model. The first layer reads no input. Backward steps go layer
by layer and run once. Per budget are printed the extra cost of what graphc finds in this order, the
least of the plans in this order that referee.py knows, and what graphc proves for all orders.
Run: python benchmarks/small_lstm.py [--layers N] [--seconds N]
"""

from __future__ import annotations

import argparse
from typing import Any

from referee import Referee
from report import circumstances, output_argument, print_table, write_json

from graphc.planner.problem import Problem, Run
from graphc.planner.recompute.lower_bound import least_bytes, least_extra_cost
from graphc.planner.recompute.solver import Solver

TIMES = 8

SHARES = (0.05, 0.1, 0.2, 0.4, 0.7)
"""Of the way from the fewest bytes found to those without recomputation."""

STATE, GATES, LOGITS = 4, 16, 20
"""Bytes of a hidden state, of the gates of a cell, of the logits, in 64 KiB."""

PRODUCT, CLASSES, GRADIENT = 54, 66, 4
"""Costs of a product, of one with the classes, and of a cell's elementwise gradients."""


class Builder:
    """Steps in the making: each value has a name and is made by one step."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.bytes: list[int] = []
        self.rows: list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]]
        self.rows = []

    def step(
        self, cost: int, reads: list[str], makes: dict[str, int], over: str | None = None
    ) -> None:
        """Add a step; what it makes first may overwrite `over`. Names that nothing makes are left
        out: the state before the first step of time, sums before their first term."""
        read = tuple(self.numbers[name] for name in reads if name in self.numbers)
        for name, size in makes.items():
            self.numbers[name] = len(self.bytes)
            self.bytes.append(size)
        made = tuple(self.numbers[name] for name in makes)
        pairs = ((made[0], self.numbers[over]),) if over in self.numbers else ()
        self.rows.append((cost, read, made, pairs))

    def steps(self, turn: int) -> Problem:
        """All steps, those from `turn` on backward."""
        cost, inputs, outputs, pairs = zip(*self.rows, strict=True)
        count = len(self.rows)
        return Problem(
            cost=cost,
            workspace=(0,) * count,
            inputs=inputs,
            outputs=outputs,
            overwrites=pairs,
            bytes=tuple(self.bytes),
            once=frozenset(step for step in range(count) if not outputs[step]),
            held=frozenset(),
            runs=(Run(0, turn, count),),
        )


def lstm_steps(layers: int) -> Problem:
    """The network, forward by time, backward by layers from the last, each back in time."""
    build = Builder()
    # Beside the maps of 256 cells there are sums for two matrices of 64 states, those of the layer
    # that runs, or for one of 78, that of the classes.
    matrix, table = (states * STATE * TIMES * layers // 256 for states in (64, 78))
    for t in range(TIMES):
        for n in range(layers):
            before = f"{n},{t - 1}"
            build.step(2 * PRODUCT + 2, [f"h{n - 1},{t}", "h" + before], {f"a{n},{t}": GATES})
            build.step(1, [f"a{n},{t}", "c" + before], {f"c{n},{t}": STATE})
            build.step(1, [f"a{n},{t}", f"c{n},{t}"], {f"h{n},{t}": STATE})
    turn = len(build.rows)
    for t in reversed(range(TIMES)):
        top = f"h{layers - 1},{t}"
        build.step(CLASSES + 3, [top], {f"l{t}": LOGITS})
        made = {f"W{t}": table, f"d{layers - 1},{t}": STATE}
        build.step(2 * CLASSES, [f"l{t}", top, f"W{t + 1}"], made, f"W{t + 1}")
    build.step(1, ["W0"], {})
    for n in reversed(range(layers)):
        for t in reversed(range(TIMES)):
            reads = [f"a{n},{t}", f"c{n},{t}", f"c{n},{t - 1}", f"d{n},{t}"]
            reads += [f"r{n},{t + 1}", f"s{n},{t + 1}"]
            build.step(GRADIENT, reads, {f"g{n},{t}": GATES, f"s{n},{t}": STATE}, f"a{n},{t}")
            reads = [f"g{n},{t}", f"h{n},{t - 1}", f"h{n - 1},{t}", f"S{n},{t + 1}"]
            made = {f"S{n},{t}": 2 * matrix, f"r{n},{t}": STATE}
            if n:
                made[f"d{n - 1},{t}"] = STATE
            build.step((4 if n else 3) * PRODUCT, reads, made, f"S{n},{t + 1}")
        build.step(1, [f"S{n},0"], {})
    return build.steps(turn)


def measure(layers: int, seconds: float) -> list[dict[str, Any]]:
    """A row for each budget."""
    steps = lstm_steps(layers)
    planner = Solver(steps)
    most, fewest = planner.no_recompute.peak_bytes, planner.least.peak_bytes
    whole = steps.cost_of(range(len(steps)))
    rows = []
    for share in SHARES:
        budget = fewest + int((most - fewest) * share)
        found = planner.plan(budget)
        assert found is not None, "the fewest bytes have a plan"
        forward = range(steps.runs[0].turn)
        most_cost = int(whole + found.extra_cost)
        verdict = Referee(steps, budget, most_cost, forward).verdict(seconds)
        rows.append(
            {
                "layers": layers,
                "steps": len(steps),
                "budget": budget,
                "share": share,
                "seconds": seconds,
                "least bytes": least_bytes(steps),
                "found": found.extra_cost / whole,
                # Infinite where the plan is cheaper than all that the referee knows.
                "least in this order": min(verdict.cost / whole - 1, found.extra_cost / whole),
                "proven in this order": min(verdict.proven, verdict.cost, most_cost) / whole - 1,
                "proven for all orders": least_extra_cost(steps, budget) / whole,
            }
        )
        print_table(rows[-1:])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=240.0, help="for each budget")
    output_argument(parser, "small_lstm.json")
    options = parser.parse_args()
    rows = [row for layers in options.layers for row in measure(layers, options.seconds)]
    print_table(rows)
    write_json(options.output, {**circumstances(["graphc", "ortools"]), "rows": rows})


if __name__ == "__main__":
    main()
