"""Schedules by name, as `solve` returns them: ids of nodes and texts of events.

A value is named by its node's id, with an output index if there are several: ``3`` or ``9[1]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from graphc.errors import ProblemError, quoted
from graphc.planner.copies.events import Event, Kind
from graphc.planner.given.problem import GivenProblem, node_of


def check_problem(given: object) -> GivenProblem:
    """Return the argument of a public function if it is a problem; raises `ProblemError`."""
    if not isinstance(given, GivenProblem):
        raise ProblemError(
            f"problem must be a GivenProblem, got {quoted(given)}; `read_problem` reads one from a "
            "file"
        )
    return given


def steps_of(problem: GivenProblem, ids: object) -> list[int]:
    """Return the steps of a sequence of ids; raises `ProblemError`."""
    step = {name: number for number, name in enumerate(problem.ids)}
    return [node_of(step, "sequence", each) for each in _listed("sequence", ids, "ids")]


def text_of(problem: GivenProblem, event: Event) -> str:
    """Return the text of an event, such as ``run 3`` or ``out 9[1]``."""
    is_run = event.kind == "run"
    return f"{event.kind} {problem.ids[event.number] if is_run else problem.name(event.number)}"


def events_from(problem: GivenProblem, given: object) -> list[Event]:
    """Return events given as texts or `Event`s; raises `ProblemError`."""
    events = [Event("run", step) for step in problem.order]
    events += [Event(kind, v) for kind in get_args(Kind)[1:] for v in range(len(problem.bytes))]
    named = {text_of(problem, event): event for event in events}
    found = []
    for at, each in enumerate(_listed("events", given, "texts such as 'run 3'")):
        event = each if isinstance(each, Event) else named.get(str(each))
        if event is None:
            raise ProblemError(
                f"event {at} is {quoted(each)}; expected run, out, drop or in, and the id of a node"
            )
        found.append(event)
    return found


def _listed(name: str, given: object, of: str) -> Iterable[object]:
    if not isinstance(given, Iterable):
        raise ProblemError(f"{name} must be a list of {of}, got {quoted(given)}")
    return given
