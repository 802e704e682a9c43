"""Memory plans: the plan, its printed forms and file, what nodes cost, the independent checker."""

from graphc.plans import html_form, json_form, printout  # plans and graphs show themselves so

__all__ = ["html_form", "json_form", "printout"]
