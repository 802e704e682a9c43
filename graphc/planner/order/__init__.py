"""Orders of steps with a low peak of live bytes, without recomputation."""

from graphc.planner.order.layers import as_late_as_needed, components, layer_by_layer
from graphc.planner.order.precedence import Arc, Precedence
from graphc.planner.order.search import least_order

__all__ = ["Arc", "Precedence", "as_late_as_needed", "components", "layer_by_layer", "least_order"]
