"""Further optimizer updates as ops (see `graphc.ops.update`), and the direction of LAMB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from graphc.errors import DTypeError, ShapeError
from graphc.ir.attributes import Between
from graphc.ir.types import TensorType
from graphc.ops.elementwise import Elementwise
from graphc.ops.update import DECAYED, Beta, Decay, Guard, MomentumAttributes, Update


class NesterovUpdate(Update):
    """v ← momentum · v + g';  w ← w - rate · (g' + momentum · v) (Sutskever et al., 2013).

    g' is g + weight_decay · w.
    """

    name, inputs = "nesterov_update", ("w", "v", "g", "rate")
    outputs = ("v_new", "w_new")
    attributes = MomentumAttributes
    must_overwrite = {"v_new": "v", "w_new": "w"}
    expressions = {
        "v_new": f"momentum * v + {DECAYED}",
        "w_new": f"w - rate * ({DECAYED} + momentum * v_new)",
    }


@dataclass(frozen=True, slots=True)
class AdagradAttributes:
    """The `epsilon` added to a divisor, and the L2 weight decay added to the gradient."""

    epsilon: Guard
    weight_decay: Decay


class AdagradUpdate(Update):
    """s ← s + g²;  w ← w - rate · g / (√s + epsilon) (Duchi, Hazan and Singer, 2011)."""

    name, inputs = "adagrad_update", ("w", "s", "g", "rate")
    outputs = ("s_new", "w_new")
    attributes = AdagradAttributes
    must_overwrite = {"s_new": "s", "w_new": "w"}
    expressions = {
        "s_new": f"s + {DECAYED} ** 2",
        "w_new": f"w - rate * {DECAYED} / (sqrt(s_new) + epsilon)",
    }


# --- root mean square propagation (Tieleman and Hinton, 2012) ---


@dataclass(frozen=True, slots=True)
class RmspropAttributes:
    """The decay rate of running means, the `epsilon` added to a divisor, and L2 weight decay."""

    alpha: Beta
    epsilon: Guard
    weight_decay: Decay


@dataclass(frozen=True, slots=True)
class RmspropMomentumAttributes:
    """The attributes of RMSprop, and the factor of the old velocity."""

    alpha: Beta
    epsilon: Guard
    weight_decay: Decay
    momentum: Annotated[float, Between(0.0, 1.0)]


_SQUARES = f"alpha * v + (1 - alpha) * {DECAYED} ** 2"
_MEAN = f"alpha * a + (1 - alpha) * {DECAYED}"
_SCALED = f"{DECAYED} / (sqrt(v_new) + epsilon)"
_CENTRED = f"{DECAYED} / (sqrt(maximum(v_new - a_new * a_new, 0)) + epsilon)"


class RmspropUpdate(Update):
    """v ← the running mean of g²; w ← w - rate · g / (√v + epsilon)."""

    name, inputs = "rmsprop_update", ("w", "v", "g", "rate")
    outputs = ("v_new", "w_new")
    attributes = RmspropAttributes
    must_overwrite = {"v_new": "v", "w_new": "w"}
    expressions = {"v_new": _SQUARES, "w_new": f"w - rate * {_SCALED}"}


class RmspropMomentumUpdate(Update):
    """RMSprop with a velocity: b ← momentum · b + g / (√v + epsilon);  w ← w - rate · b."""

    name, inputs = "rmsprop_momentum_update", ("w", "v", "b", "g", "rate")
    outputs = ("v_new", "b_new", "w_new")
    attributes = RmspropMomentumAttributes
    must_overwrite = {"v_new": "v", "b_new": "b", "w_new": "w"}
    expressions = {
        "v_new": _SQUARES, "b_new": f"momentum * b + {_SCALED}", "w_new": "w - rate * b_new",
    }  # fmt: skip


class CenteredRmspropUpdate(Update):
    """a ← the running mean of g; w ← w - rate · g / (√(v - a²) + epsilon) (Graves, 2013)."""

    name, inputs = "centered_rmsprop_update", ("w", "v", "a", "g", "rate")
    outputs = ("v_new", "a_new", "w_new")
    attributes = RmspropAttributes
    must_overwrite = {"v_new": "v", "a_new": "a", "w_new": "w"}
    expressions = {"v_new": _SQUARES, "a_new": _MEAN, "w_new": f"w - rate * {_CENTRED}"}


class CenteredRmspropMomentumUpdate(Update):
    """RMSprop with a centered second moment and with a velocity."""

    name, inputs = "centered_rmsprop_momentum_update", ("w", "v", "a", "b", "g", "rate")
    outputs = ("v_new", "a_new", "b_new", "w_new")
    attributes = RmspropMomentumAttributes
    must_overwrite = {"v_new": "v", "a_new": "a", "b_new": "b", "w_new": "w"}
    expressions = {
        "v_new": _SQUARES, "a_new": _MEAN, "b_new": f"momentum * b + {_CENTRED}",
        "w_new": "w - rate * b_new",
    }  # fmt: skip


# --- Lion ---


@dataclass(frozen=True, slots=True)
class LionAttributes:
    """`beta1` weighs the old moment in the update of w, `beta2` in the new moment."""

    beta1: Beta
    beta2: Beta


class LionUpdate(Update):
    """w ← w · decay - rate · sign(β1 · m + (1 - β1) · g);  m ← β2 · m + (1 - β2) · g.

    This is Lion (Chen et al., 2023).
    """

    name, inputs = "lion_update", ("w", "m", "g", "rate", "decay")
    outputs = ("w_new", "m_new")
    attributes = LionAttributes
    must_overwrite = {"w_new": "w", "m_new": "m"}
    expressions = {
        "w_new": "w * decay - rate * sign(beta1 * m + (1 - beta1) * g)",
        "m_new": "beta2 * m + (1 - beta2) * g",
    }


# --- LAMB (You et al., 2020) ---

_FIRST, _SECOND = "(beta1 * m + (1 - beta1) * g)", "(beta2 * v + (1 - beta2) * g * g)"


@dataclass(frozen=True, slots=True)
class LambDirectionAttributes:
    """Decay rates of the moments, the `epsilon` added to a divisor, and decoupled weight decay."""

    beta1: Beta
    beta2: Beta
    epsilon: Guard
    weight_decay: Decay


class LambDirection(Elementwise):
    """The unscaled direction of a LAMB step: m̂ / (√v̂ + epsilon) + weight_decay · w.

    m̂ and v̂ are the bias-corrected new moments, which `LambUpdate` stores. `first` is 1 / (1 -
    β1ᵗ), and `second` is 1 / √(1 - β2ᵗ).
    """

    name, inputs = "lamb_direction", ("w", "m", "v", "g", "first", "second")
    attributes = LambDirectionAttributes
    may_overwrite = {}
    expression = f"{_FIRST} * first / (sqrt({_SECOND}) * second + epsilon) + weight_decay * w"

    def infer(self, attributes: Any, *types: TensorType) -> TensorType:
        w, m, *_ = types
        if any(type.dtype.kind != "float" for type in types):
            raise DTypeError(f"all operands must be floats, got {types}")
        shapes = (*(w.shape,) * 4, (), ())
        if tuple(type.shape for type in types) != shapes:
            raise ShapeError(
                "moments and gradient must have the shape of w, and the others must be scalars; "
                f"got {types}"
            )
        return m


@dataclass(frozen=True, slots=True)
class LambAttributes:
    """Decay rates of the two moments."""

    beta1: Beta
    beta2: Beta


class LambUpdate(Update):
    """m and v are updated as in Adam; w ← w - rate · trust · direction."""

    name, inputs = "lamb_update", ("w", "m", "v", "g", "direction", "rate", "trust")
    outputs = ("m_new", "v_new", "w_new")
    attributes = LambAttributes
    scalars = ("rate", "trust")
    must_overwrite = {"m_new": "m", "v_new": "v", "w_new": "w"}
    expressions = {
        "m_new": _FIRST, "v_new": _SECOND, "w_new": "w - rate * trust * direction",
    }  # fmt: skip


# --- Muon ---


@dataclass(frozen=True, slots=True)
class MuonAttributes:
    """The decay rate of the mean of gradients, and a factor of the learning rate."""

    momentum: Beta
    factor: Annotated[float, Between(0.0)]


class MuonUpdate(Update):
    """b ← momentum · b + (1 - momentum) · g;  w ← w · decay - rate · factor · direction."""

    name, inputs = "muon_update", ("w", "b", "g", "direction", "rate", "decay")
    outputs = ("b_new", "w_new")
    attributes = MuonAttributes
    must_overwrite = {"b_new": "b", "w_new": "w"}
    expressions = {
        "b_new": "momentum * b + (1 - momentum) * g",
        "w_new": "w * decay - rate * factor * direction",
    }
