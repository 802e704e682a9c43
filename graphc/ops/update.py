"""Optimizer steps as ops: each updates a parameter and its moments in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from graphc.errors import DTypeError, ShapeError
from graphc.ir.attributes import Between
from graphc.ir.expression import Expression, parse
from graphc.ir.graph import Node
from graphc.ir.op import Array, Op, Recorder
from graphc.ir.op_class import check_declared, fail
from graphc.ir.types import Kind, TensorType, bool_
from graphc.ops.elementwise import Elementwise

DECAYED = "(g + weight_decay * w)"

LARGEST = 1e6
"""The largest learning rate, weight decay or epsilon."""

Decay = Annotated[float, Between(0.0, LARGEST)]
Guard = Annotated[float, Between(0.0, LARGEST)]
Beta = Annotated[float, Between(0.0, below=1.0)]


class Update(Elementwise):
    """Base of updates: inputs that are states come first, and every output replaces one of them.

    Expressions write the gradient with L2 decay as `DECAYED`; at weight decay 0 it is replaced by
    the gradient alone. Every update has an optional last input, a bool scalar ``ok``. If that is
    false, the states are unchanged, to the last bit.
    """

    learning_rates = ("rate",)
    scalars: ClassVar[tuple[str, ...]] = ("rate", "correction", "decay")
    """Inputs that are scalars; all others have the shape of the state."""
    kinds: ClassVar[Mapping[str, Kind]] = {}
    """Input → the kind of its dtype, if it is not a float."""
    variants: ClassVar[Mapping[tuple[bool, bool], Mapping[str, Expression]]]
    """(with weight decay, with input ``ok``) → the expressions that are evaluated."""

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            check_declared(cls)
            if missing := sorted(set(cls.outputs) - set(cls.must_overwrite)):
                fail(
                    cls, f"`must_overwrite` lacks {missing}; an update names the state it replaces"
                )
            cls.inputs = (*cls.inputs, "*ok")
        super().__init_subclass__()
        plain = {output: s.replace(DECAYED, "g") for output, s in cls.expressions.items()}
        guarded = "where(ok, {}, {})".format
        cls.variants = {}
        for decays, sources in ((True, cls.expressions), (False, plain)):
            kept = {o: guarded(s, cls.must_overwrite[o]) for o, s in sources.items()}
            for guards, written in ((False, sources), (True, kept)):
                parsed = {output: parse(source) for output, source in written.items()}
                cls.variants = {**cls.variants, (decays, guards): parsed}

    def expressions_for(self, attributes: Any, operands: int) -> Mapping[str, Expression]:
        decays = getattr(attributes, "weight_decay", 0.0) != 0.0
        return self.variants[decays, operands == len(self.inputs)]

    def infer(self, attributes: Any, *types: TensorType) -> tuple[TensorType, ...]:
        inputs = dict(zip(self.inputs, types, strict=False))
        guard = types[len(self.inputs) - 1 :]
        if len(guard) > 1 or any(type != TensorType((), bool_) for type in guard):
            raise ShapeError(f"the guard of an update must be one bool scalar, got {guard}")
        for name, type in inputs.items():
            if name == self.inputs[-1]:
                continue
            shape = () if name in self.scalars else types[0].shape
            if type.shape != shape:
                raise ShapeError(f"{name} must have the shape {list(shape)}, got {type}")
            if type.dtype.kind != self.kinds.get(name, "float"):
                raise DTypeError(f"{name} must be of {self.kinds.get(name, 'float')}s, got {type}")
        return tuple(inputs[self.must_overwrite[output]] for output in self.outputs)


@dataclass(frozen=True, slots=True)
class SgdAttributes:
    """L2 weight decay, added to the gradient."""

    weight_decay: Decay


class SgdUpdate(Update):
    """w ← w - rate · (g + weight_decay · w)."""

    name, inputs = "sgd_update", ("w", "g", "rate")
    outputs = ("w_new",)
    attributes = SgdAttributes
    must_overwrite = {"w_new": "w"}
    expressions = {"w_new": f"w - rate * {DECAYED}"}


@dataclass(frozen=True, slots=True)
class MomentumAttributes:
    """Factor of the old velocity, and L2 weight decay added to the gradient."""

    momentum: Annotated[float, Between(0.0, 1.0)]
    weight_decay: Decay


class MomentumUpdate(Update):
    """v ← momentum · v + g + weight_decay · w;  w ← w - rate · v."""

    name, inputs = "momentum_update", ("w", "v", "g", "rate")
    outputs = ("v_new", "w_new")
    attributes = MomentumAttributes
    must_overwrite = {"v_new": "v", "w_new": "w"}
    expressions = {
        "v_new": f"momentum * v + {DECAYED}",
        "w_new": "w - rate * v_new",
    }


@dataclass(frozen=True, slots=True)
class AdamAttributes:
    """Decay rates of the two moments, the `epsilon` added to a divisor, and L2 weight decay."""

    beta1: Beta
    beta2: Beta
    epsilon: Guard
    weight_decay: Decay


class AdamUpdate(Update):
    """Adam (Kingma and Ba, 2015, Alg. 1) with the bias corrections given as two numbers.

    `rate` is learning_rate / (1 - β1ᵗ) and `correction` is 1 / √(1 - β2ᵗ).
    """

    name, inputs = "adam_update", ("w", "m", "v", "g", "rate", "correction")
    outputs = ("m_new", "v_new", "w_new")
    attributes = AdamAttributes
    must_overwrite = {"m_new": "m", "v_new": "v", "w_new": "w"}
    expressions = {
        "m_new": f"beta1 * m + (1 - beta1) * {DECAYED}",
        "v_new": f"beta2 * v + (1 - beta2) * {DECAYED} ** 2",
        "w_new": "w - rate * m_new / (sqrt(v_new) * correction + epsilon)",
    }


@dataclass(frozen=True, slots=True)
class AdamwAttributes:
    """Decay rates of the two moments, and the `epsilon` added to a divisor."""

    beta1: Beta
    beta2: Beta
    epsilon: Guard


class AdamwUpdate(Update):
    """Adam with decoupled decay (Loshchilov and Hutter, 2019); `decay` is the factor of w."""

    name, inputs = "adamw_update", ("w", "m", "v", "g", "rate", "correction", "decay")
    outputs = ("m_new", "v_new", "w_new")
    attributes = AdamwAttributes
    must_overwrite = {"m_new": "m", "v_new": "v", "w_new": "w"}
    expressions = {
        "m_new": "beta1 * m + (1 - beta1) * g",
        "v_new": "beta2 * v + (1 - beta2) * g * g",
        "w_new": "w * decay - rate * m_new / (sqrt(v_new) * correction + epsilon)",
    }


@dataclass(frozen=True, slots=True)
class BetaAttributes:
    """Decay rates of Adam's two moments."""

    beta1: Beta
    beta2: Beta


def is_counter(type: TensorType) -> bool:
    """Return whether a type is that of an integer scalar."""
    return type.dtype.kind == "int" and type.shape == ()


class AdamCorrection(Op):
    """The two bias corrections of `AdamUpdate` for a step, in float64 and rounded once."""

    name, inputs = "adam_correction", ("learning_rate", "step")
    outputs = ("rate", "correction")
    attributes = BetaAttributes
    learning_rates = ("learning_rate",)

    def infer(
        self, attributes: BetaAttributes, learning_rate: TensorType, step: TensorType
    ) -> tuple[TensorType, ...]:
        if learning_rate.dtype.kind != "float" or learning_rate.shape or not is_counter(step):
            raise ShapeError(
                "the learning rate must be a float scalar and step an integer scalar, got "
                f"{learning_rate} and {step}"
            )
        return (learning_rate,) * 2

    def kernel(
        self,
        record: Recorder,
        node: Node,
        learning_rate: Array,
        step: Array,
        *,
        rate: Array,
        correction: Array,
    ) -> None:
        record(_correct, node.attributes, learning_rate, step, rate, correction)


def _correct(
    betas: BetaAttributes, learning_rate: Array, step: Array, rate: Array, correction: Array
) -> None:
    # NumPy returns infinity for a count below 1, where Python would raise.
    beta1, beta2, count = np.float64(betas.beta1), np.float64(betas.beta2), step.item() + 1
    rate[()] = learning_rate.item() / (1 - beta1**count)
    correction[()] = (1 - beta2**count) ** -0.5


@dataclass(frozen=True, slots=True)
class LossScaleAttributes:
    """The number of consecutive finite steps after which the scale doubles."""

    interval: Annotated[float, Between(1.0, 2.0**31)]


class LossScaleUpdate(Update):
    """The loss scale of mixed precision, halved after overflow (Micikevicius et al., 2018).

    It is doubled after `interval` finite steps.
    """

    name, inputs = "loss_scale_update", ("scale", "good", "finite")
    outputs = ("scale_new", "good_new")
    attributes = LossScaleAttributes
    must_overwrite = {"scale_new": "scale", "good_new": "good"}
    kinds = {"finite": "bool"}
    expressions = {
        "scale_new": "where(finite, where(good + 1 < interval, scale, scale * 2), "
        "maximum(scale * 0.5, 1))",
        "good_new": "where(finite, where(good + 1 < interval, good + 1, 0), 0)",
    }


class Increment(Update):
    """A counter incremented by one."""

    name, inputs, outputs = "increment", ("count",), ("count_new",)
    must_overwrite = {"count_new": "count"}
    kinds = {"count": "int"}
    expressions = {"count_new": "count + 1"}
