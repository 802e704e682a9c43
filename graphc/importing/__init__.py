"""Common parts of the readers of other frameworks' models."""
