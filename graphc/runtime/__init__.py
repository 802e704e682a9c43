"""Programs: a plan bound to one arena, and what executes it."""
