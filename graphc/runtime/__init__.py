"""Programs: plans bound to one arena, and the backends that execute them."""
