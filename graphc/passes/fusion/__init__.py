"""Groups of nodes that run as one kernel."""
