"""Figures of a plan, and their comparison with a measured step."""
