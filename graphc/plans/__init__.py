"""Memory plans: the plan itself, its text forms and file, the cost model, and the checker."""

from graphc.plans import html_form, json_form, overview, printout  # registers printed forms

__all__ = ["html_form", "json_form", "overview", "printout"]
