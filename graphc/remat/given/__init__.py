"""Recomputation plans for problems that are given as data: any graph, without the DSL."""

from graphc.ir.host_link import HostLink
from graphc.remat.given.clocks import Timing, measure
from graphc.remat.given.problem import Problem, read_problem
from graphc.remat.given.replay import Replay, replay
from graphc.remat.given.solve import LinkedSolution, Solution, solve
from graphc.remat.offload.events import Event

__all__ = [
    "Event",
    "HostLink",
    "LinkedSolution",
    "Problem",
    "Replay",
    "Solution",
    "Timing",
    "measure",
    "read_problem",
    "replay",
    "solve",
]
