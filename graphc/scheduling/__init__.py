"""Orders of steps with a low peak of live bytes, without recomputation."""

from graphc.scheduling.layers import as_late_as_needed, components, layer_by_layer
from graphc.scheduling.precedence import Arc, Precedence
from graphc.scheduling.search import least_order

__all__ = ["Arc", "Precedence", "as_late_as_needed", "components", "layer_by_layer", "least_order"]
