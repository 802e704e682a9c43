"""Attributes that no op could have are refused by type inference, in graph texts as in Python."""

import re
from dataclasses import fields, replace
from functools import cache

import loops
import numpy as np
import pytest
from codegen.updates import UPDATES
from ops.refused import ANY_TRUTH, FAR, HUGE, INF, NAN, NOT_FINITE, REFUSED
from ops.samples import SAMPLES
from ops.samples.collectives import there_and_back
from ops.test_every_op import build, find_node

import graphc as g
from graphc.codegen.target import CudaTarget
from graphc.compiler.compile import CompileOptions
from graphc.devices.device import find_device
from graphc.errors import GraphcError, OptionError, ShapeError, TextError
from graphc.ir import builder
from graphc.ir.attributes import Between, Whole, checked_attributes
from graphc.ir.op import REGISTRY, attribute_items
from graphc.ir.parse import attribute_types
from graphc.ir.types import TensorType, as_dtype, float32, float64, int64, uint8
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.ops.collective import Arrival

FLOAT8 = {
    "float8_linear", "float8_product", "quantize", "quantize_both", "quantize_turned",
    "scale_update",
}  # fmt: skip
"""Ops on 8-bit floats, which exist only inside a step; see tests/passes/test_float8.py."""


@cache
def nodes():
    """Op → a node of it, by the first of its samples."""
    found = {}
    for sample in (*SAMPLES, *UPDATES):
        if sample.op not in found:
            found[sample.op] = find_node(sample, build(sample)[2])
    layer = g.linear(g.relu(g.linear(g.input("x", (16, 16)), 16)), 3)
    narrow = g.plan(g.mean(layer), optimizer=g.optim.SGD(), precision="fp8").graph
    return found | {node.op.name: node for node in narrow.nodes if node.op.name in FLOAT8}


def test_every_attribute_has_a_refused_value_or_a_reason_why_there_is_none():
    stated = {(name, key) for name, keys in REFUSED.items() for key, bad in keys.items() if bad}
    declared = {(n, f.name) for n, op in REGISTRY.items() for f in fields(op.attributes)}
    assert stated | set(ANY_TRUTH) == declared
    assert not stated & set(ANY_TRUTH)
    assert {attribute_types(REGISTRY[name])[key] for name, key in ANY_TRUTH} == {bool}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_type_inference_refuses_impossible_attributes(name):
    node = nodes()[name]
    same = builder.create(node.op, node.inputs, node.attributes, builder.Context())
    assert same.output_types == node.output_types
    cases = {
        f"{attribute}={value}": (node.op, node.inputs, changed, builder.Context())
        for attribute, values in REFUSED[name].items()
        for value in values
        for changed in [replace(node.attributes, **{attribute: value})]
    }
    assert not loops.accepted(cases, builder.create, GraphcError)


def test_a_truth_is_nothing_but_true_or_false():
    for name, attribute in ANY_TRUTH:
        node = nodes()[name]
        own = np.bool_(getattr(node.attributes, attribute))
        numpys = replace(node.attributes, **{attribute: own})
        made = builder.create(node.op, node.inputs, numpys, builder.Context()).attributes
        assert made == node.attributes
        assert type(getattr(made, attribute)) is bool
        for value in ("yes", 1, None):
            changed = replace(node.attributes, **{attribute: value})
            with (
                loops.case((name, attribute, value)),
                pytest.raises(OptionError, match=f"{attribute} must be True or False, got"),
            ):
                builder.create(node.op, node.inputs, changed, builder.Context())


X, WEIGHT = g.input("maps", (4, 6, 2, 2)), g.input("weight", (3, 6, 1, 1))
TRUTHS = {
    "mean: keepdims": lambda given: g.mean(X, 1, given),
    "keepdims": lambda given: g.any(g.greater(X, 0.0), 1, given),
    "sum: keepdims": lambda given: g.logsumexp(X, 1, given),
    "argmax: keepdims": lambda given: g.argmax(X, 1, given),
    "argmin: last": lambda given: g.argmin(X, 1, last=given),
    "largest": lambda given: g.top_k(X, 1, largest=given),
    "sort: descending": lambda given: g.sort(X, 1, given),
    "matmul: transpose_b": lambda given: g.matmul(X, X, transpose_b=given),
    "cumsum: exclusive": lambda given: g.cumsum(X, 1, given),
    "max_pool2d: ceil_mode": lambda given: g.max_pool2d(X, 2, ceil_mode=given),
    "grid_sample: align_corners": lambda given: g.grid_sample(X, X, align_corners=given),
    "kl_divergence: log_target": lambda given: g.kl_divergence(X, X, log_target=given),
    "batch_norm: frozen": lambda given: g.batch_norm(X, frozen=given),
    "conv2d: bias": lambda given: g.conv2d(X, 3, 1, bias=given),
    "conv2d: trainable": lambda given: g.conv2d(X, weight=WEIGHT, trainable=given),
    "parameter 'weight': trainable": lambda given: g.linear(X, 3, trainable=given),
    "antialias": lambda given: g.resize(X, (4, 6, 4, 4), form="linear", antialias=given),
    "nesterov": lambda given: g.optim.SGD(0.1, 0.9, nesterov=given),
    "centered": lambda given: g.optim.RMSProp(centered=given),
    "check_finite": lambda given: g.compile(outputs=[X + 1.0], check_finite=given),
    "training": lambda given: g.plan(outputs=[X + 1.0], training=given),
    "external_data": lambda given: g.onnx.save(X + 1.0, "no.onnx", external_data=given),
}


@pytest.mark.parametrize("told", TRUTHS)
def test_an_option_of_a_function_is_true_or_false(told):
    for value in ("no", 3, 1):
        with pytest.raises(OptionError, match=f"{told}.* True or False.*, got {value!r}"):
            TRUTHS[told](value)


def test_truths_may_be_those_of_numpy():
    assert g.sum(X, 1, np.True_).node.attributes == g.sum(X, 1, True).node.attributes
    assert g.cumsum(X, 1, np.True_).node.attributes.exclusive is True
    assert g.optim.RMSProp(centered=np.True_).centered is True
    options = CompileOptions(outputs=[X], fuse=np.False_, training=np.True_, cudnn=np.False_)
    assert (options.fuse, options.training, options.cudnn) == (False, True, False)
    assert {type(each) for each in (options.fuse, options.training, options.cudnn)} == {bool}
    q = g.input("q", (3, 4))
    first, second = (g.plan(outputs=[g.attention(q, q, q, c)]).graph for c in (np.True_, True))
    assert g.format_graph(first) == g.format_graph(second)


def test_other_objects_than_optimizers_are_refused():
    for make in (lambda: g.optim.Muon(others=3), lambda: g.optim.Groups([("w", 3)], 3)):
        with pytest.raises(OptionError, match=r"must be an object such as graphc\.optim\.Adam"):
            make()


NOT_ALONE = {"write_back", "written_back"} | FLOAT8
"""Ops that need others: a state on the host, its copy and an update (see
tests/passes/test_host_states.py), or those that store 8-bit floats."""

ALONE = sorted(set(REGISTRY) - NOT_ALONE)


def alone(name, **changes):
    """A graph of one node, on states where it overwrites them and inputs elsewhere.

    Where the node is a collective or copy, what waits for it is there, too.
    """
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
    if node.op.copies_to:
        outputs = {"y": there_and_back(operands[0])}
    if node.op.sends:  # and the end of what it begins
        outputs = {"y": builder.apply(Arrival, node.output).output}
    graph = builder.trace(outputs or {"y": node.outputs[0]})
    verify(graph)
    return graph


@pytest.mark.parametrize("name", ALONE)
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


@pytest.mark.parametrize("name", [n for n in ALONE if fields(REGISTRY[n].attributes)])
def test_accepted_attributes_run_on_the_cpu_and_have_gpu_kernels(name):
    gpu, own = CudaTarget(find_device("a100")), nodes()[name].attributes
    for attribute, declared in attribute_types(REGISTRY[name]).items():
        others = () if attribute == "ranks" else strange(declared)  # here is one process
        for value in (getattr(own, attribute), *others):
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


@pytest.mark.parametrize("name", [n for n in ALONE if REGISTRY[n].has_effect])
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
            with pytest.raises(OptionError, match="x must be a"):
                rule.check("x", value)


def test_attributes_of_a_class_made_in_a_function_have_no_rules_and_are_taken():
    from dataclasses import dataclass

    class Own:
        pass

    @dataclass(frozen=True)
    class Attributes:
        kind: "Own"

    own = Attributes(Own())
    assert checked_attributes(own) is own


@pytest.mark.parametrize(
    ("kind", "scale", "dtype"),
    [("uniform", INF, "float32"), ("normal", NAN, "float32"), ("uniform", -1.0, "float32"),
     ("uniform", 1e38, "float32"), ("constant", 1e39, "float32"), ("constant", 0.5, "int32"),
     ("normal", 1.0, "int64"), ("constant", 10**400, "float64"), ("seed", 0.0, "float32")],
)  # fmt: skip
def test_impossible_initial_values_are_refused(kind, scale, dtype):
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
