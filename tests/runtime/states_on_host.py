"""Plans with states in host memory, even small ones."""

from dataclasses import replace

import graphc as g
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import STEPS, make_plan
from graphc.passes.host_states import with_moments_on_host


def _moved(graph, compilation):
    return with_moments_on_host(graph, least_bytes=0)


SMALL_TOO = tuple(
    replace(step, change=_moved) if step.name == "host-states" else step for step in STEPS
)
"""The steps of the pipeline, with moments of any size in host memory."""


def planned(loss, **options):
    """A plan whose moments are all in host memory."""
    options = {"optimizer": g.optim.Adam(1e-2), "host_states": "moments", **options}
    return make_plan(PlanOptions(loss, **options), SMALL_TOO)
