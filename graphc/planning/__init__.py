"""Recomputation plans for problems that are given as data: any graph, without the DSL."""

from graphc.planning.problem import Problem, read_problem
from graphc.planning.replay import Replay, replay
from graphc.planning.solve import Solution, solve

__all__ = ["Problem", "Replay", "Solution", "read_problem", "replay", "solve"]
