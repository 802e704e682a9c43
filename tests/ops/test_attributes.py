"""Attributes that no op could have are refused by type inference, in graph texts as in Python."""

import re
from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from codegen.updates import UPDATES
from ops.samples import SAMPLES
from ops.test_every_op import build, find_node

import graphc as g
from graphc.allocation.allocate import Allocation
from graphc.codegen.target import CudaTarget
from graphc.errors import GraphcError, OptionError, ShapeError, TextError
from graphc.ir import builder
from graphc.ir.attributes import Between, Whole, check_attributes
from graphc.ir.device import find_device
from graphc.ir.graph import Graph
from graphc.ir.op import REGISTRY, attribute_items
from graphc.ir.parse import attribute_types
from graphc.ir.types import TensorType, as_dtype, float32, float64, int64, uint8
from graphc.ir.verify import verify

NAN, INF = float("nan"), float("inf")
FAR, HUGE = 10**12, 2**63
NOT_FINITE = (NAN, INF, -INF)
PAIRS = ((0, 1), (1, 0), (-1, 1), (1, -1), (1,), (1, 1, 1), (HUGE, 1), (1, FAR), 2)
EXTENTS = (*PAIRS, (FAR, FAR))
WINDOW = {
    "stride": PAIRS,
    "padding": ((-1, 0), (0, -1), (1,), (HUGE, 0), (0, FAR), (0, 0, 0), (0, 0, -1, 0)),
}
POOL = {
    "window": (*PAIRS, (FAR, FAR), (2**20, 2**20)), "stride": PAIRS,
    "padding": (*WINDOW["padding"], (2, 0), (0, 0, 0, 2), (FAR, FAR)), "dilation": (*PAIRS, (6, 1)),
}  # fmt: skip
CONVOLUTION = {**WINDOW, "dilation": PAIRS, "groups": (0, -1, 3, FAR, HUGE)}
AXIS = {"axis": (-1, 4, FAR, HUGE)}
AXES = {"axes": ((-1,), (4,), (1, 0), (0, 0), (HUGE,), (True,), 0)}
FRAME = {
    "shape": ((5,), (30, 1), (5, 6, 1), (5, FAR), (0, 6), ()),
    "statistic_axes": ((0,), (2,), (-1,), (), (1, 1), (HUGE,)),
    "parameter_axes": ((0,), (2,), (-1,), (), (0, 1), (1, 1), (HUGE,)),
}
EPSILON = (0.0, -1e-5, *NOT_FINITE, 10**400)
MOMENTUM = (-0.1, 1.1, *NOT_FINITE)
DECAY = (-0.1, 1e300, *NOT_FINITE)
BETA = (-0.1, 1.0, 1.5, *NOT_FINITE)
RMS = {"alpha": BETA, "epsilon": DECAY, "weight_decay": DECAY}
NUMBER = (*NOT_FINITE, 10**400, "1", True)
STREAM = (-1, 2**32, HUGE, 0.5)
ABOVE_0 = (0.0, -1.0, *NOT_FINITE)
DTYPE = ("", "half", "f99", None, 3)
PLACES = ("", "int16", "uint8", "float32", None)
BATCH = (-1, 2, 4, FAR, HUGE, 0.5)
SHAPE = ((0,), (-3,), (FAR, FAR), (HUGE,), (2.5,), (1,) * 65, 12)
PART = (-0.1, 1.1, *NOT_FINITE)
LABELS = ((1, 2), (HUGE,), (True,), 0)
FACTOR = (0, -1, FAR, HUGE)
MAP = {"axis": (-1, 4, FAR, HUGE, 2.5), "extent": (0, -1, FAR, HUGE, 2.5, 1)}
REGIONS = {
    "bins": (*PAIRS, (FAR, FAR)),
    "ratio": (-1, 1025, FAR, HUGE, 0.5),
    "scale": (0.0, -1.0, *NOT_FINITE),
}
PLACES = {"form": ("", "bilinear", None), "outside": ("", "border", None)}
UNFOLD = {
    "window": (0, -1, 4, FAR, HUGE),
    "stride": (0, -1, 3, HUGE),
    "dilation": (0, 5, HUGE),
    "before": (-1, 9, HUGE, 1.5),
    "behind": (-1, 9, HUGE),
    "axis": (-1, 4, FAR, HUGE),
}
RESIZE = {
    **MAP,
    "scale": (0.0, -1.0, 9.0, 10**400, *NOT_FINITE),
    "form": ("", "bilinear", None),
    "coordinates": ("", "corners", None),
    "rounding": ("", "half_even", None),
    "cubic": (1e300, *NOT_FINITE),
    "region": ((0.0,), (NAN, 1.0), (0.0, INF), 0.5),
    "value": (10**400, "1", None),
}
MEMBERS = ((), ("",), ("neg",), ("neg(x9)",), ("softmax(x0, axis=0)",), ("neg(x0, value=nan)",))

REFUSED = {
    "adagrad_update": {"epsilon": DECAY, "weight_decay": DECAY},
    "adam_correction": {"beta1": BETA, "beta2": BETA},
    "adam_update": {"beta1": BETA, "beta2": BETA, "epsilon": DECAY, "weight_decay": DECAY},
    "adamw_update": {"beta1": BETA, "beta2": BETA, "epsilon": DECAY},
    "adaptive_average_pool2d": {"extent": EXTENTS},
    "adaptive_average_pool2d_gradient": {"extent": EXTENTS},
    "argmax": {**AXIS, "index": PLACES},
    "argmin": {**AXIS, "index": PLACES},
    "attention": {"scale": NOT_FINITE, "from_first": (True,)},
    "attention_gradient": {"scale": NOT_FINITE, "from_first": (True,)},
    "average_pool2d": POOL,
    "average_pool2d_gradient": {**POOL, "extent": (*EXTENTS, (1, 1), (64, 64))},
    "batch_norm": {"epsilon": EPSILON, "momentum": MOMENTUM},
    "broadcast_to": {"shape": (*SHAPE, (7,), ())},
    "cast": {"dtype": DTYPE},
    "celu": {"alpha": ABOVE_0},
    "celu_gradient": {"alpha": ABOVE_0},
    "clip": {"low": NUMBER, "high": NUMBER},
    "clip_gradient": {"low": NUMBER, "high": NUMBER},
    "concat": AXIS,
    "centered_rmsprop_momentum_update": {**RMS, "momentum": MOMENTUM},
    "centered_rmsprop_update": RMS,
    "conv2d": CONVOLUTION,
    "conv2d_input_gradient": {**CONVOLUTION, "extent": (*EXTENTS, (1, 1), (64, 64))},
    "conv2d_weight_gradient": {
        **CONVOLUTION, "window": (*EXTENTS, (7, 7)), "accumulate": (True,),
    },
    "cross_entropy": {"smoothing": PART, "ignored": LABELS},
    "cross_entropy_gradient": {"smoothing": PART, "ignored": LABELS},
    "cumsum": AXIS,
    "dropout": {"rate": (-0.1, 1.0, 1.5, *NOT_FINITE), "stream": STREAM},
    "elu": {"alpha": ABOVE_0},
    "elu_gradient": {"alpha": ABOVE_0},
    "fold_axis": {**UNFOLD, "extent": (*MAP["extent"], 13)},
    "full": {"shape": SHAPE, "dtype": DTYPE, "value": (10**400, "1", None)},
    "fused": {"members": MEMBERS, "results": ((), (9,), (-1,), (HUGE,), (0, 0))},
    "fused_reduce": {
        "members": MEMBERS[1:], "reduction": ("", "softmax", "neg"),
        "axes": ((-1,), (4,), (0, 0), (HUGE,)), "order": ((), (0,), (0, 0), (0, 7), (HUGE, 0)),
        "after": MEMBERS[1:],
    },
    "gather_gradient": {"rows": (0, -1, FAR * FAR, HUGE, 1.5), "accumulate": (True,)},
    "gather_nd": {"batch": BATCH},
    "group_norm": {"groups": (0, -1, 3, HUGE), "epsilon": EPSILON},
    "huber": {"delta": EPSILON},
    "huber_gradient": {"delta": EPSILON},
    "label_weight": {"ignored": LABELS},
    "hard_sigmoid": {"alpha": NUMBER, "beta": NUMBER},
    "hard_sigmoid_gradient": {"alpha": NUMBER, "beta": NUMBER},
    "interpolate": PLACES,
    "interpolate_input_gradient": {
        **PLACES, "extents": ((0, 2), (-1, 3), (3,), (), (FAR, 1), (HUGE, 1), 3),
    },
    "interpolate_place_gradient": {**PLACES, "form": (*PLACES["form"], "nearest")},
    "lamb_direction": {
        "beta1": BETA, "beta2": BETA, "epsilon": DECAY, "weight_decay": DECAY,
    },
    "lamb_update": {"beta1": BETA, "beta2": BETA},
    "layer_norm": {"epsilon": EPSILON},
    "leaky_relu": {"slope": ABOVE_0},
    "leaky_relu_gradient": {"slope": ABOVE_0},
    "learning_rate": {
        "form": ("", "square", None), "peak": DECAY, "floor": (*DECAY, 0.6),
        "steps": (0, -1, 1.5), "warmup": (-1, 9, FAR, 0.5), "dtype": (*DTYPE, "int32", "bool"),
    },
    "linear": {"activation": ("", "tanh", None)},
    "lion_update": {"beta1": BETA, "beta2": BETA},
    "log_softmax": AXIS,
    "log_softmax_gradient": AXIS,
    "loss_scale_update": {"interval": (0.0, -1.0, *NOT_FINITE)},
    "masked_softmax": AXIS,
    "matmul": {"accumulate": (True,)},
    "max": AXES,
    "max_pool2d": {**POOL, "window": (*POOL["window"], (17, 17))},
    "max_pool2d_gradient": {**POOL, "extent": (*EXTENTS, (1, 1), (64, 64))},
    "max_pool2d_select": POOL,
    "mean": AXES,
    "min": AXES,
    "momentum_update": {"momentum": MOMENTUM, "weight_decay": DECAY},
    "muon_update": {"momentum": BETA, "factor": (-0.1, *NOT_FINITE)},
    "nesterov_update": {"momentum": MOMENTUM, "weight_decay": DECAY},
    "norm_bias_gradient": {**FRAME, "statistic_axes": FRAME["statistic_axes"][1:]},
    "norm_input_gradient": FRAME,
    "norm_scale_gradient": FRAME,
    "one_hot": {"classes": (0, -1, FAR * FAR, HUGE, 1.5), "dtype": DTYPE},
    "normal": {
        "shape": SHAPE, "dtype": (*DTYPE, "int32"), "mean": NUMBER, "scale": (*NUMBER, -1.0),
        "stream": STREAM,
    },
    "pad_slice": {
        "shape": (*SHAPE, (1, 1)), "starts": ((-1, 0), (9, 9), (0,), (HUGE, 0)),
        "stops": ((0, 0), (99, 99), (1,), (-1, -1)), "steps": ((0, 1), (-1, 1), (1,), (FAR, 1)),
        "value": (10**400, "1", None),
    },
    "pad_axis": {
        **MAP, "extent": (*MAP["extent"], 5), "before": (-1, 6, HUGE, 1.5), "mode": ("", "mirror"),
    },
    "pad_axis_gradient": {
        **MAP, "extent": (*MAP["extent"][:-1], 8), "before": (-1, 6, HUGE, 1.5),
        "mode": ("", "mirror"),
    },
    "power": {"value": NUMBER},
    "reshape": {"shape": (*SHAPE, (7,), ())},
    "reverse": {"axes": (*AXES["axes"], ())},
    "resize_axis": RESIZE,
    "resize_axis_gradient": {**RESIZE, "scale": (*RESIZE["scale"], 0.5)},
    "rms_norm": {"epsilon": EPSILON},
    "roi_align": REGIONS,
    "roi_align_gradient": {
        **REGIONS, "bins": (*REGIONS["bins"], (3, 3)),
        "maps": ((0, 1, 1), (1, -1, 1), (2, 2), (FAR, 1, 1), (1, HUGE, 1), 3),
    },
    "rmsprop_momentum_update": {**RMS, "momentum": MOMENTUM},
    "rmsprop_update": RMS,
    "running_mean_update": {"momentum": MOMENTUM},
    "running_variance_update": {
        "momentum": MOMENTUM, "epsilon": EPSILON, "unbiased": (0.0, -1.0, 9.0, *NOT_FINITE),
    },
    "scale": {"value": NUMBER},
    "selu": {"alpha": ABOVE_0, "gamma": ABOVE_0},
    "selu_gradient": {"alpha": ABOVE_0, "gamma": ABOVE_0},
    "scatter_nd": {"batch": BATCH},
    "scatter_nd_add": {"batch": BATCH},
    "scatter_nd_max": {"batch": BATCH},
    "scatter_nd_min": {"batch": BATCH},
    "scatter_nd_mul": {"batch": BATCH},
    "sgd_update": {"weight_decay": DECAY},
    "shift": {"value": NUMBER},
    "slice": {
        "starts": ((-1, 0), (9, 9), (0,), (HUGE, 0)), "stops": ((0, 0), (99, 99), (1,), (-1, -1)),
        "steps": ((0, 1), (-1, 1), (1,), (FAR, 1)),
    },
    "softmax": AXIS,
    "softmax_gradient": AXIS,
    "split": {"sizes": ((), (0,), (-1, 5), (99,), (HUGE,)), **AXIS},
    "sum": AXES,
    "thresholded_relu": {"threshold": NUMBER},
    "thresholded_relu_gradient": {"threshold": NUMBER},
    "top_k": {**AXIS, "k": (0, -1, 6, FAR, HUGE, 1.5), "index": PLACES},
    "transpose": {"permutation": ((0,), (0, 0), (-1, 0), (0, 5), (HUGE, 0), ())},
    "unfold_axis": {**UNFOLD, "extent": (*MAP["extent"], 14)},
    "uniform": {
        "shape": SHAPE, "dtype": (*DTYPE, "bool"), "low": (*NUMBER, 3.5), "high": (*NUMBER, -1.5),
        "stream": STREAM,
    },
    "upsample_bilinear2d": {"factor": FACTOR},
    "upsample_bilinear2d_gradient": {"factor": (*FACTOR, 5)},
    "upsample_nearest2d": {"factor": FACTOR},
}  # fmt: skip
"""Op → attribute → values that its type inference refuses on the operands of the op's sample."""

ANY_TRUTH = {
    ("argmax", "last"): "the first or the last of equal elements counts",
    ("argmin", "last"): "as for argmax",
    ("attention", "causal"): "rows see all columns, or those before them",
    ("attention_gradient", "causal"): "as for attention",
    ("conv2d_weight_gradient", "wide"): "a product of 16-bit floats may be float32",
    ("cumsum", "exclusive"): "an element's own number is added, or not",
    ("cumsum", "reverse"): "sums may begin at either end",
    ("fused_reduce", "keepdims"): "axes may stay with extent 1",
    ("matmul", "transpose_a"): "either order of two axes is a matrix, operands decide if it fits",
    ("matmul", "transpose_b"): "as for the other operand",
    ("matmul", "wide"): "a product of 16-bit floats may be float32",
    ("roi_align", "aligned"): "centres lie at halves or at whole numbers",
    ("roi_align_gradient", "aligned"): "as going forward",
    ("resize_axis", "antialias"): "a kernel is as wide as elements of x, or of the result",
    ("resize_axis", "exclude_outside"): "elements at the ends stand for those beyond, or none do",
    ("resize_axis_gradient", "antialias"): "as going forward",
    ("resize_axis_gradient", "exclude_outside"): "as going forward",
    ("max", "keepdims"): "axes may stay with extent 1",
    ("mean", "keepdims"): "axes may stay with extent 1",
    ("min", "keepdims"): "axes may stay with extent 1",
    ("sum", "keepdims"): "axes may stay with extent 1",
    ("top_k", "largest"): "elements are taken from either end",
}
"""Attributes of which every value, true or false, means something, and what."""


@cache
def nodes():
    """Op → a node of it, by the first of its samples."""
    found = {}
    for sample in (*SAMPLES, *UPDATES):
        if sample.op not in found:
            found[sample.op] = find_node(sample, build(sample)[2])
    return found


CASES = [
    (name, attribute, value)
    for name, attributes in REFUSED.items()
    for attribute, values in attributes.items()
    for value in values
]
every_case = pytest.mark.parametrize(
    ("name", "attribute", "value"), CASES, ids=[re.sub(r"\d{40,}", "long", f"{c}") for c in CASES]
)


def test_every_attribute_has_a_refused_value_or_a_reason_why_there_is_none():
    stated = {(name, key) for name, keys in REFUSED.items() for key, bad in keys.items() if bad}
    declared = {(n, f.name) for n, op in REGISTRY.items() for f in fields(op.attributes)}
    assert stated | set(ANY_TRUTH) == declared
    assert not stated & set(ANY_TRUTH)
    assert {attribute_types(REGISTRY[name])[key] for name, key in ANY_TRUTH} == {bool}


@every_case
def test_type_inference_refuses(name, attribute, value):
    node = nodes()[name]
    same = builder.create(node.op, node.inputs, node.attributes, builder.Context())
    assert same.output_types == node.output_types
    changed = replace(node.attributes, **{attribute: value})
    with pytest.raises(GraphcError):
        builder.create(node.op, node.inputs, changed, builder.Context())


def alone(name, **changes):
    """A graph of one node, on states where it overwrites them and inputs elsewhere."""
    model = nodes()[name]
    replaced = set(model.op.must_overwrite.values())
    operands = [
        builder.state(f"x{i}", v.shape, v.type.dtype, 0.0, "moment")
        if model.op.input_name(i) in replaced
        else g.input(f"x{i}", v.shape, v.type.dtype)
        for i, v in enumerate(model.inputs)
    ]
    attributes = replace(model.attributes, **changes) if changes else model.attributes
    node = builder.create(model.op, operands, attributes, builder.Context())
    outputs = {f"y{v.index}": v for v in node.outputs if v not in node.replaced}
    graph = Graph((node,), outputs or {"y": node.outputs[0]})
    verify(graph)
    return graph


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_graph_text_with_a_refused_attribute_is_not_read(name):
    text = g.format_graph(alone(name))
    assert g.format_graph(g.parse_graph(text)) == text
    given = dict(attribute_items(nodes()[name].attributes))
    for attribute, values in REFUSED.get(name, {}).items():
        for value in values:
            listed = ", ".join(f"{k}={v!r}" for k, v in {**given, attribute: value}.items())
            changed, count = re.subn(rf"(= {name}\([^()]*\)).*", rf"\1 {{{listed}}}", text)
            assert count == 1
            with pytest.raises(TextError):
                g.parse_graph(changed)


STRANGE = {
    int: (0, 1, 2, 7, -1, 2**31, 2**62, HUGE, FAR),
    float: (0.0, 1.0, -1.0, 0.5, 1e-300, 1e30, 1e300, *NOT_FINITE, 3, 10**400),
    bool: (False, True),
    str: ("", "float16", "uint8", "bool", "max", "cosine", "gelu", "%"),
}
"""Values of the types that attributes have."""


def strange(declared):
    """Values of a declared type: of tuples, as many members of one value as make sense."""
    if declared in STRANGE:
        return STRANGE[declared]
    if getattr(declared, "__origin__", None) is not tuple:
        return STRANGE[str]
    member, *others = declared.__args__
    lengths = (0, 1, 2, 3, 4) if others == [...] else (len(declared.__args__),)
    return [(value,) * n for value in STRANGE[member] for n in lengths]


@pytest.mark.parametrize("name", sorted(n for n in REGISTRY if fields(REGISTRY[n].attributes)))
def test_what_type_inference_takes_runs_on_the_cpu_and_has_kernels_for_a_gpu(name):
    gpu, own = CudaTarget(find_device("a100")), nodes()[name].attributes
    for attribute, declared in attribute_types(REGISTRY[name]).items():
        for value in (getattr(own, attribute), *strange(declared)):
            try:
                graph = alone(name, **{attribute: value})
            except GraphcError:
                assert value is not getattr(own, attribute)
                continue
            if sum(v.type.bytes for v in graph.values) > 2**22:
                continue
            feeds = {x.name: np.zeros(x.shape, x.type.dtype.numpy) for x in graph.inputs}
            g.Program(Allocation(graph).plan("packed"), poison=True).step(feeds)
            Allocation(graph, gpu).plan("packed")


# --- operands ---


@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if op.has_effect])
def test_updates_take_states_gradients_and_rates_of_the_right_shape_and_kind(name):
    node = nodes()[name]
    types = [value.type for value in node.inputs]
    if name == "increment":
        wrong = {0: (TensorType((), float32),)}
    else:
        wrong = {
            i: (TensorType((*t.shape, 2), t.dtype), t.with_dtype(uint8), TensorType((9,), t.dtype))
            for i, t in enumerate(types)
        }
    for index, others in wrong.items():
        for other in others:
            if name == "loss_scale_update" and other.shape == () and other.dtype != uint8:
                continue
            changed = tuple(other if i == index else t for i, t in enumerate(types))
            with pytest.raises(GraphcError):
                node.op.infer_types(node.attributes, changed)


@pytest.mark.parametrize("name", ["learning_rate", "adam_correction", "dropout", "normal"])
def test_step_numbers_are_one_integer(name):
    node = nodes()[name]
    types = [value.type for value in node.inputs]
    assert types[-1] == TensorType((), int64)
    for wrong in (TensorType((2,), int64), TensorType((), float64)):
        with pytest.raises(ShapeError):
            node.op.infer_types(node.attributes, (*types[:-1], wrong))


# --- sizes ---


def test_a_tensor_of_2_to_the_60_bytes_or_65_axes_is_refused():
    assert TensorType((2**60 - 1,), uint8).bytes == 2**60 - 1
    assert TensorType((1,) * 64, uint8).rank == 64
    for shape in ((2**60,), (2**30, 2**30), (1,) * 65, (HUGE,), (10**400,)):
        with pytest.raises(ShapeError, match=r"2\*\*60 bytes and at most 64 axes"):
            TensorType(shape, uint8)
    with pytest.raises(ShapeError, match="more than 4300 digits"):
        g.input("x", (-(10**5000),))


def test_the_values_of_a_graph_have_less_than_2_to_the_60_bytes_together():
    def text(extent):
        return (
            f"graph {{\n%x: u8[{extent}] = input()\n%0: u8[{extent}] = neg(%x)\noutput y = %0\n}}"
        )

    g.parse_graph(text(2**59 - 1))
    with pytest.raises(TextError, match="together"):
        g.parse_graph(text(2**59))
    x = g.input("x", (2**59,), "uint8")
    with pytest.raises(GraphcError, match="together"):
        g.plan(outputs=[g.neg(x)])


@pytest.mark.parametrize("given", ["a", None, NAN, -1.0, (0.5,), INF])
def test_a_layers_numbers_are_refused_as_options(given):
    x = g.input("x", (4, 6, 2, 2))
    for make in (
        lambda: g.leaky_relu(x, given),
        lambda: g.batch_norm(x, momentum=given),
        lambda: g.layer_norm(x, epsilon=given),
        lambda: g.dropout(x, given),
    ):
        with pytest.raises(OptionError, match="got"):
            make()


def test_a_layers_numbers_may_be_those_of_numpy():
    x = g.input("x", (4, 6, 2, 2))
    assert g.leaky_relu(x, np.float32(0.5)).producer.attributes.slope == 0.5
    norm = g.batch_norm(x, momentum=np.float32(0.5), epsilon=np.float32(0.25)).producer
    assert (norm.attributes.momentum, norm.attributes.epsilon) == (0.5, 0.25)


# --- rules ---


def test_rules_hold_at_their_boundaries():
    for rule, good, bad in (
        (Whole(1, 5), (1, 5, np.int64(3)), (0, 6, 2.0, True, "3")),
        (Between(0.0, 1.0), (0, 1, 0.5, np.float32(0.5)), (-1e-9, 1.1, NAN, True, "0")),
        (Between(), (np.float16(6e4), np.float32(-3e38)), (np.float32(INF), np.float16(NAN))),
        (Between(0.0, below=1.0), (0.0, 1 - 2**-53), (1.0, -5e-324)),
        (Between(above=0.0), (5e-324, 1.7e308), (0.0, INF, 10**400)),
    ):
        for value in good:
            rule.check("x", value)
        for value in bad:
            with pytest.raises(OptionError, match="x is a"):
                rule.check("x", value)


def test_attributes_of_a_class_made_in_a_function_have_no_rules_and_are_taken():
    from dataclasses import dataclass

    class Own:
        pass

    @dataclass(frozen=True)
    class Attributes:
        kind: "Own"

    check_attributes(Attributes(Own()))


@pytest.mark.parametrize(
    ("kind", "scale", "dtype"),
    [("uniform", INF, "float32"), ("normal", NAN, "float32"), ("uniform", -1.0, "float32"),
     ("uniform", 1e38, "float32"), ("constant", 1e39, "float32"), ("constant", 0.5, "int32"),
     ("normal", 1.0, "int64"), ("constant", 10**400, "float64"), ("seed", 0.0, "float32")],
)  # fmt: skip
def test_what_a_state_cannot_begin_with_is_refused(kind, scale, dtype):
    with pytest.raises(GraphcError):
        g.parameter("w", (3,), dtype, g.Initial(kind, scale))
    short = TensorType((3,), as_dtype(dtype))
    with pytest.raises(TextError):
        g.parse_graph(
            f"graph {{\n@w: {short} = parameter() {{initial={kind!r}, scale={scale!r}}}\n"
            "output y = @w\n}"
        )


def test_a_step_number_below_0_makes_no_kernel_raise():
    """As a graph text may begin its counter, or a feed may say."""
    for name in ("adam_correction", "learning_rate", "dropout", "uniform"):
        graph = alone(name)
        program = g.Program(Allocation(graph).plan("packed"))
        for step in (-(2**62), -2, -1, 0, 2**62):
            feeds = {x.name: np.zeros(x.shape, x.type.dtype.numpy) for x in graph.inputs}
            feeds[graph.inputs[-1].name] = np.array(step, np.int64)
            program.step(feeds)
