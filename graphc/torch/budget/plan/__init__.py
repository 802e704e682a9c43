"""Planning: costs and steps of a joint graph, schedules, and the emitted graphs."""
