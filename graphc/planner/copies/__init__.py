"""Schedules that copy values to host memory and back, beside recomputation."""
