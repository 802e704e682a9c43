"""Recomputation plans for problems that are given as data: any graph, without the DSL."""

from graphc.planning.given.problem import Problem, read_problem
from graphc.planning.given.replay import Replay, replay
from graphc.planning.given.solve import Solution, solve

__all__ = ["Problem", "Replay", "Solution", "read_problem", "replay", "solve"]
