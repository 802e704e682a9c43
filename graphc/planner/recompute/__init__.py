"""Schedules that recompute, within a capacity."""
