"""Predictions of the memory that training with torch needs, without data, weights or a GPU."""
