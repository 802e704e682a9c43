"""Random numbers, drawn where they are used: dropout and noise."""
