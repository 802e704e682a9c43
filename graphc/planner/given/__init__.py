"""Recomputation plans for problems that are given as data: any graph, without the DSL."""

from graphc.planner.copies.events import Event
from graphc.planner.given.clocks import Timing, measure
from graphc.planner.given.problem import GivenProblem, read_problem
from graphc.planner.given.replay import Replay, replay
from graphc.planner.given.solve import LinkedSolution, Solution, solve
from graphc.planner.host_link import HostLink

__all__ = [
    "Event",
    "GivenProblem",
    "HostLink",
    "LinkedSolution",
    "Replay",
    "Solution",
    "Timing",
    "measure",
    "read_problem",
    "replay",
    "solve",
]
