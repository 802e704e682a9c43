"""Passes: functions from one graph to the next, and planners from a graph to a memory plan."""
