"""Memory plans: the plan, its printed forms and file, the cost model, and the independent
checker."""

from graphc.plans import html_form, json_form, overview, printout  # registers printed forms

__all__ = ["html_form", "json_form", "overview", "printout"]
