"""The checker of plans: replays, which share no code with what makes plans."""
