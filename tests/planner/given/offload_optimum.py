"""The fastest schedule of a tiny problem with a link, by exhaustive search over events.

A state is what the device and the host hold and which nodes have run, with the clocks relative to
the compute lane. Of two equal states, one with no later clock replaces the other. Values that are
live out or pinned, overwriting and workspaces are modeled; the host is unlimited.
"""

import heapq
import itertools

MOST = 2500
"""The number of states after which the search gives up."""


class TooManyStatesError(Exception):
    """The problem is too large for an exhaustive search."""


def fastest(problem, budget):
    """Return the least seconds of a schedule within a budget, None if none fits."""
    return _Search(problem, budget).run()


class _Search:
    def __init__(self, problem, budget):
        self.problem, self.link, self.budget = problem, problem.link, budget
        self.values = [v for node in problem.order for v in problem.outputs[node]]
        self.fixed = {v for node in problem.pinned for v in problem.outputs[node]}
        self.fronts = {}
        self.heap, self.ticket = [], itertools.count()

    def run(self):
        # device: value -> (ready, is copied, has a use); host: value -> end of its copy
        self.push(0.0, {}, {}, frozenset(), 0.0, 0.0)
        for _ in range(MOST):
            if not self.heap:
                return None
            now, _, device, host, done, out_lane, in_lane = heapq.heappop(self.heap)
            if self.is_end(device, done):
                return now
            self.follow(now, device, host, done, out_lane, in_lane)
        raise TooManyStatesError

    def is_end(self, device, done):
        # Arrivals at the end are modeled by a wait, which `follow` offers.
        return set(self.problem.order) <= done and all(
            v in device and device[v][0] is None for v in self.problem.live_out
        )

    def live(self, device):
        return self.problem.fixed_bytes + sum(self.problem.bytes[v] for v in device)

    def follow(self, now, device, host, done, out_lane, in_lane):
        p = self.problem
        for node in p.order:
            if node in done and node in p.once:
                continue
            if not set(p.after[node]) <= done or not device.keys() >= set(p.inputs[node]):
                continue
            if any(v in device for v in p.outputs[node]):
                continue  # the older instance ends first
            self.compute(node, now, device, host, done, out_lane, in_lane)
        for v in list(device):
            ready, is_copied, used = device[v]
            rest = {k: x for k, x in device.items() if k != v}
            if ready is not None and set(p.order) <= done and v in p.live_out:
                self.push(max(now, ready), {**rest, v: (None, is_copied, True)}, host, done,
                          out_lane, in_lane)  # fmt: skip
            if v in self.fixed:
                continue
            if is_copied:
                self.push(max(now, host[v]), rest, host, done, out_lane, in_lane)
            elif used:
                self.push(now, rest, host, done, out_lane, in_lane)
            if v not in host:
                end = max(out_lane, 0.0 if ready is None else ready)
                end += self.link.out_seconds(p.bytes[v])
                lanes = (end, in_lane if self.link.both_ways else end)
                after = {**device, v: (ready, True, True)}
                self.push(now, after, {**host, v: end}, done, *lanes)
        for v, ended in host.items():
            if v not in device:
                after = {**device, v: None}
                if self.live(after) > self.budget:
                    continue
                end = max(in_lane, now, ended) + self.link.in_seconds(p.bytes[v])
                after[v] = (end, False, False)
                lanes = (out_lane if self.link.both_ways else end, end)
                self.push(now, after, host, done, *lanes)

    def compute(self, node, now, device, host, done, out_lane, in_lane):
        p = self.problem
        start = max([now, *(device[v][0] or 0.0 for v in p.inputs[node])])
        end = start + p.cost[node]
        read = {**device}
        for v in p.inputs[node]:
            read[v] = (device[v][0], device[v][1], True)
        operands = sorted({o for _, o in p.overwrites[node]} - self.fixed)
        for count in range(len(operands) + 1):
            for dying in itertools.combinations(operands, count):
                if any(device[o][1] for o in dying):
                    continue
                taken, saved = set(), 0
                for output, operand in p.overwrites[node]:
                    if operand in dying and taken.isdisjoint((output, operand)):
                        taken |= {output, operand}
                        saved += p.bytes[output]
                after = {**read, **dict.fromkeys(p.outputs[node], (end, False, True))}
                if self.live(after) + p.workspace[node] - saved > self.budget:
                    continue
                for operand in dying:
                    del after[operand]
                self.push(end, after, host, done | {node}, out_lane, in_lane)

    def push(self, now, device, host, done, out_lane, in_lane):
        # A time in the past is as good as now; None marks content that is complete.
        device = {
            v: (None if x[0] is None or x[0] <= now else x[0], *x[1:]) for v, x in device.items()
        }
        host = {v: end if end > now else 0.0 for v, end in host.items()}
        out_lane, in_lane = max(out_lane, now), max(in_lane, now)
        key = (
            tuple(sorted((v, x[0] is None, x[1], x[2]) for v, x in device.items())),
            tuple(sorted(host)), done,
        )  # fmt: skip
        clocks = (
            now, out_lane, in_lane,
            *(device[v][0] or 0.0 for v in sorted(device)), *(host[v] for v in sorted(host)),
        )  # fmt: skip
        front = self.fronts.setdefault(key, [])
        if any(all(a <= b for a, b in zip(old, clocks, strict=True)) for old in front):
            return
        front[:] = [
            old for old in front if not all(a <= b for a, b in zip(clocks, old, strict=True))
        ]
        front.append(clocks)
        heapq.heappush(self.heap, (now, next(self.ticket), device, host, done, out_lane, in_lane))
