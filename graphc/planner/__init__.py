"""Plans on numbers: steps with costs and bytes, schedules, orders, packings. Knows no graph."""
