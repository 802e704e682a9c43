"""Passes: functions from one graph to the next."""
