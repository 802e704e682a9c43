"""Orders of steps with a low peak of live bytes, without recomputation."""

from graphc.scheduling.layers import components, layer_by_layer, when_asked
from graphc.scheduling.precedence import Arc, Precedence
from graphc.scheduling.search import least_order

__all__ = ["Arc", "Precedence", "components", "layer_by_layer", "least_order", "when_asked"]
