"""Independent checker of schedules with copies to the host: simulates one and measures it.

It shares no code with planners but the types of events and links, and the seconds of one copy. A
schedule is a list of events in issue order (graphc/planner/copies/events.py). Three
lanes work side by side: computation in the order of the list, copies to the host, and copies to the
device, each first in, first out. Let t be the time at which the computation so far ends.

    run n     starts at max(t, ends of the copies to the device of its inputs); t is its end
    out v     starts at max(end of the last copy to the host, end of the run or copy that made v)
    drop v    t = max(t, end of the copy of v to the host)
    in v      starts at max(end of the last copy to the device, t, end of the copy of v to the host)

If the link runs one way at a time, both kinds of copies share one lane. If the host's bytes are
limited, an `out` also starts after the ends of the last copies back of all values whose host bytes
were released before it. The schedule ends when computation ends and all outputs have arrived.

An instance of a value is what a run or an `in` puts on the device. It is live until its `drop`. An
instance without a copy to the host ends at its last use before the next instance, as in replay.py;
one with a copy and without a drop lives to the end. So no bytes are freed while a copy reads them:
later events start after t, which has waited for the drop. Nor are bytes freed while a copy writes
them, since an instance that is fetched has a use, which waits for the copy.

A value is copied to the host at most once. Its host bytes are taken from the `out` to its last
`in`, so it may be fetched several times, and recomputed as well.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import NoReturn

from graphc.byte_sizes import parse_bytes
from graphc.errors import ProblemError
from graphc.planner.copies.events import Event
from graphc.planner.given.names import check_problem, events_from
from graphc.planner.given.problem import GivenProblem
from graphc.planner.host_link import HostLink


@dataclass(frozen=True, slots=True)
class Timing:
    """Measures of a schedule: seconds, those of runs alone, peak bytes on device and host, and the
    bytes copied in each direction."""

    seconds: float
    run_seconds: float
    peak_bytes: int
    host_peak_bytes: int
    bytes_to_host: int
    bytes_to_device: int

    @property
    def stalls(self) -> float:
        """The seconds during which computation waits for copies."""
        return max(0.0, self.seconds - self.run_seconds)


@dataclass(slots=True)
class _Instance:
    """A value on the device from event `begin` to event `end`, both included. `ready` is the time
    at which its content is complete."""

    begin: int
    end: int
    copied: bool = False
    dropped: bool = False
    fetched: bool = False
    used: bool = False
    ready: float = 0.0


def measure(
    problem: GivenProblem, events: Sequence[str | Event], budget: int | str | None = None
) -> Timing:
    """Measure a schedule of texts such as ``out 3``, as in `LinkedSolution.events`, or of `Event`s
    with the numbers of steps and values.

    Raises `ProblemError` if it is not legal, or if its bytes exceed `budget` on the device or the
    link's `host_bytes` on the host.
    """
    link = check_problem(problem).link
    if link is None:
        raise ProblemError("the problem has no link; add `link` to measure copies to the host")
    listed = events_from(problem, events)
    timing = _Clocks(problem, link, listed, LiveRanges(problem, listed)).timing()
    limit = None if budget is None else parse_bytes("budget", budget)
    if limit is not None and timing.peak_bytes > limit:
        raise ProblemError(f"the schedule needs {timing.peak_bytes} bytes, the budget is {limit}")
    most = link.host_bytes
    if most is not None and timing.host_peak_bytes > most:
        raise ProblemError(
            f"the schedule needs {timing.host_peak_bytes} bytes on the host, which has {most}"
        )
    return timing


class LiveRanges:
    """The instances of each value in a schedule, whose events are checked one by one."""

    def __init__(self, problem: GivenProblem, events: Sequence[Event]) -> None:
        self.problem, self.events = problem, events
        self.current: dict[int, _Instance] = {}
        self.made: dict[tuple[int, int], _Instance] = {}
        """Instances by the event that begins them and their value."""
        self.instances: list[tuple[int, _Instance]] = []
        self.done: set[int] = set()
        self.out_at: dict[int, int] = {}
        self.last_in: dict[int, int] = {}
        for at, event in enumerate(events):
            limit = len(problem) if event.kind == "run" else len(problem.bytes)
            if event.number not in range(limit):
                self.fail(at, f"names {event.number}, but the numbers are 0 to {limit - 1}")
            handler = {"run": self.run, "out": self.out, "drop": self.drop, "in": self.fetch}
            if event.kind not in handler:
                self.fail(at, f"has the kind {event.kind!r}; choose run, out, drop or in")
            handler[event.kind](at, event.number)
        self.finish()

    def fail(self, at: int, problem: str) -> NoReturn:
        raise ProblemError(f"event {at} {problem}")

    def run(self, at: int, node: int) -> None:
        problem, name = self.problem, self.problem.ids[node]
        for value in problem.inputs[node]:
            self.use(at, value, f"computes node {name}, which reads {problem.name(value)},")
        for first in problem.after[node]:
            if first not in self.done:
                other = problem.ids[first]
                self.fail(at, f"computes node {name} before node {other}, which must run first")
        if node in problem.once and node in self.done:
            self.fail(at, f"recomputes node {name}, which may run only once")
        self.done.add(node)
        for value in problem.outputs[node]:
            self.make(at, value, fetched=False)

    def use(self, at: int, value: int, what: str) -> None:
        found = self.current.get(value)
        if found is None:
            self.fail(at, f"{what} before it is computed")
        if found.dropped:
            self.fail(at, f"{what} after its drop; fetch or recompute it first")
        found.used, found.end = True, at

    def make(self, at: int, value: int, fetched: bool) -> None:
        self.unused(value)
        found, name = self.current.get(value), self.problem.name(value)
        if found is not None and found.copied and not found.dropped:
            self.fail(at, f"makes value {name} again during its copy to the host; drop it first")
        self.current[value] = made = _Instance(at, at, fetched=fetched)
        self.made[at, value] = made
        self.instances.append((value, made))

    def out(self, at: int, value: int) -> None:
        name = self.problem.name(value)
        if value in self.out_at:
            self.fail(at, f"copies value {name} to the host, which has it already")
        self.use(at, value, f"copies value {name} to the host")
        self.current[value].copied = True
        self.out_at[value] = at

    def drop(self, at: int, value: int) -> None:
        found, name = self.current.get(value), self.problem.name(value)
        if self.problem.producer[value] in self.problem.pinned:
            self.fail(at, f"drops value {name} of a pinned node, which stays on the device")
        if found is None or not found.copied:
            self.fail(at, f"drops value {name} before it is copied to the host; add `out` first")
        self.use(at, value, f"drops value {name}")
        found.dropped = True

    def fetch(self, at: int, value: int) -> None:
        name = self.problem.name(value)
        if value not in self.out_at:
            self.fail(at, f"fetches value {name}, which was not copied to the host")
        self.make(at, value, fetched=True)
        self.last_in[value] = at

    def unused(self, value: int) -> None:
        found = self.current.get(value)
        if found is not None and found.fetched and not found.used:
            self.fail(found.begin, f"fetches value {self.problem.name(value)} without a later use")

    def finish(self) -> None:
        """Check the end of the schedule, and set the end of instances that live up to it."""
        problem, end = self.problem, len(self.events)
        for node in sorted(problem.pinned - self.done):
            raise ProblemError(
                f"the schedule does not compute the pinned node {problem.ids[node]}; add it"
            )
        for value in sorted(problem.live_out):
            self.use(end, value, f"(the end) needs the output {problem.name(value)}")
        for value in self.current:
            self.unused(value)
        for value, at in self.out_at.items():
            if value not in self.last_in:
                self.fail(at, f"copies value {problem.name(value)}, which is never fetched")
        for _, made in self.instances:
            if made.copied and not made.dropped:
                made.end = end

    def levels(self) -> list[int]:
        """Return the bytes live on the device during each event."""
        problem, found = self.problem, list[int]()
        begins = [0] * len(self.events)
        frees = [0] * (len(self.events) + 1)
        ends: set[tuple[int, int]] = set()
        for value, made in self.instances:
            begins[made.begin] += problem.bytes[value]
            frees[made.end] += problem.bytes[value]
            ends.add((made.end, value))
        live = problem.fixed_bytes
        for at, event in enumerate(self.events):
            live += begins[at]
            beside = 0
            if event.kind == "run":
                taken = self.overwritten(at, event.number, ends)
                beside = problem.workspace[event.number] - sum(problem.bytes[v] for v in taken)
            found.append(live + beside)
            live -= frees[at]
        return found

    def overwritten(self, at: int, node: int, ends: Container[tuple[int, int]]) -> set[int]:
        """Return the inputs whose bytes outputs take over, since this is their last use; pairs are
        in the order given."""
        outputs, operands = set[int](), set[int]()
        for output, operand in self.problem.overwrites[node]:
            if (at, operand) in ends and output not in outputs and operand not in operands:
                outputs.add(output)
                operands.add(operand)
        return operands

    def during(self, at: int) -> set[int]:
        """Return the values live on the device during an event, except inputs overwritten there."""
        event = self.events[at]
        found = [(value, made) for value, made in self.instances if made.begin <= at <= made.end]
        live = {value for value, _ in found}
        if event.kind == "run":
            ends = {(made.end, value) for value, made in found}
            live -= self.overwritten(at, event.number, ends)
        return live


class _Clocks:
    """The clocks and bytes of legal events."""

    def __init__(
        self, problem: GivenProblem, link: HostLink, events: Sequence[Event], lives: LiveRanges
    ) -> None:
        self.problem, self.link, self.events, self.lives = problem, link, events, lives
        self.now = 0.0
        self.run_seconds = 0.0
        self.out_lane = self.in_lane = 0.0
        self.out_end: dict[int, float] = {}
        self.host_free = 0.0
        """The end of the copies back that released host bytes so far."""
        self.current: dict[int, _Instance] = {}
        self.host = self.host_peak = self.sent = self.fetched = 0

    def timing(self) -> Timing:
        peak = max(self.lives.levels(), default=self.problem.fixed_bytes)
        for at, event in enumerate(self.events):
            if event.kind == "run":
                self.run(at, event.number)
            elif event.kind == "out":
                self.out(event.number)
            elif event.kind == "drop":
                self.now = max(self.now, self.out_end[event.number])
            else:
                self.fetch(at, event.number)
        ready = (self.current[value].ready for value in self.problem.live_out)
        seconds = max([self.now, *ready])
        copied = self.sent, self.fetched
        return Timing(seconds, self.run_seconds, peak, self.host_peak, *copied)

    def run(self, at: int, node: int) -> None:
        problem = self.problem
        ready = (self.current[value].ready for value in problem.inputs[node])
        self.now = max([self.now, *ready]) + problem.cost[node]
        self.run_seconds += problem.cost[node]
        for value in problem.outputs[node]:
            self.made(at, value, self.now)

    def out(self, value: int) -> None:
        size = self.problem.bytes[value]
        waits = [self.out_lane, self.current[value].ready]
        if self.link.host_bytes is not None:
            waits.append(self.host_free)
        end = max(waits) + self.link.out_seconds(size)
        self.out_end[value] = self.out_lane = end
        if not self.link.both_ways:
            self.in_lane = end
        self.sent += size
        self.host += size
        self.host_peak = max(self.host_peak, self.host)

    def fetch(self, at: int, value: int) -> None:
        size = self.problem.bytes[value]
        end = max(self.in_lane, self.now, self.out_end[value]) + self.link.in_seconds(size)
        self.in_lane = end
        if not self.link.both_ways:
            self.out_lane = end
        self.made(at, value, end)
        self.fetched += size
        if self.lives.last_in[value] == at:
            self.host -= size
            self.host_free = max(self.host_free, end)

    def made(self, at: int, value: int, ready: float) -> None:
        self.current[value] = self.lives.made[at, value]
        self.current[value].ready = ready
