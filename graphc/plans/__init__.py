"""Memory plans: the plan, its printed forms and file, what nodes cost, the independent checker."""
