"""Recomputation plans for problems that are given as data: any graph, without the DSL."""

from graphc.remat.given.problem import Problem, read_problem
from graphc.remat.given.replay import Replay, replay
from graphc.remat.given.solve import Solution, solve

__all__ = ["Problem", "Replay", "Solution", "read_problem", "replay", "solve"]
