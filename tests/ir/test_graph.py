import asyncio
import threading

import pytest

import graphc as g
from graphc.errors import DTypeError, GraphError, OptionError, ShapeError
from graphc.ir import builder
from graphc.ir.builder import apply, trace
from graphc.ir.verify import verify
from graphc.ops.elementwise import Add


def diamond():
    x = g.input("x", (2, 3))
    left, right = g.relu(x), g.tanh(x)
    return x, left, right, g.sum(left * right)


def test_trace_orders_by_creation_and_drops_what_nothing_needs():
    x, left, _, out = diamond()
    g.exp(left)
    graph = trace({"out": out})
    assert [node.op.name for node in graph.nodes] == ["relu", "tanh", "mul", "sum"]
    assert graph.inputs == (x,)
    assert graph.uses[x] == [0, 1]
    verify(graph)


def test_graph_is_immutable():
    graph = trace({"out": diamond()[-1]})
    with pytest.raises(AttributeError):
        graph.nodes = ()
    with pytest.raises(AttributeError):
        graph.nodes[0].op = None


def test_deep_graphs_do_not_recurse():
    value = g.input("x", (1,))
    for _ in range(20_000):
        value = value + 1.0
    loss = g.sum(value)
    assert len(trace({"loss": loss}).nodes) == 20_001
    (dx,) = g.gradient(loss, [trace({"loss": loss}).inputs[0]])
    assert dx.shape == (1,)


def test_scopes_nest_and_name_parameters():
    x = g.input("x", (2, 3))
    with g.scope("encoder"), g.scope("layer0"):
        y = g.linear(x, 4, name="query")
    graph = trace({"y": y})
    assert [s.name for s in graph.states] == [
        "encoder/layer0/query/weight",
        "encoder/layer0/query/bias",
    ]
    assert y.producer.scope == "encoder/layer0/query"
    assert g.input("z", (1,)).name == "z"


def test_scopes_hold_per_thread_and_per_task():
    seen = {}

    def work(name):
        with g.scope(name):
            seen[name] = builder.scoped_name("w")

    async def task(name):
        with g.scope(name):
            await asyncio.sleep(0)
            seen[name] = builder.scoped_name("w")

    async def tasks():
        await asyncio.gather(task("c"), task("d"))

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    with g.scope("outer"):
        for thread in threads:
            thread.start()
            thread.join()
    asyncio.run(tasks())
    assert seen == {name: f"{name}/w" for name in "abcd"}


@pytest.mark.parametrize("name", ["", "7", "a b", "a//b", "/a", "a/", None, "ü%"])
def test_names_that_the_text_form_cannot_hold(name):
    with pytest.raises(OptionError, match="name"), g.scope(name):
        pass
    with pytest.raises(OptionError, match="name"):
        g.input(name, (1,))


def test_two_parameters_of_one_name_say_the_cure():
    y = g.parameter("w", (2,)) + g.parameter("w", ())
    places = r"'w', f32\[2\] from .*test_graph.py:\d+ and f32\[\] from .*test_graph.py:\d+; .*name="
    with pytest.raises(GraphError, match=places):
        trace({"y": y})


def test_two_inputs_of_one_name():
    with pytest.raises(GraphError, match="two inputs are named 'x'"):
        trace({"y": g.input("x", (2,)) + g.input("x", (2,))})


def test_shape_mismatch_names_op_types_scope_and_rule():
    with pytest.raises(ShapeError) as error, g.scope("layer3"):
        g.matmul(g.input("a", (2, 3)), g.input("b", (4, 5)))
    for part in (
        "matmul(f32[2,3], f32[4,5])",
        "layer3",
        "differ: 3 from a",
        "and 4 from b",
        "transpose",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x, i: x + i, DTypeError),
        (lambda x, i: g.exp(i), DTypeError),
        (lambda x, i: g.matmul(x, i), DTypeError),
        (lambda x, i: g.where(x, x, x), DTypeError),
        (lambda x, i: g.gather(x, x), DTypeError),
        (lambda x, i: g.mean(i), DTypeError),
        (lambda x, i: g.add(x, g.input("w", (5,))), ShapeError),
        (lambda x, i: g.reshape(x, (5,)), ShapeError),
        (lambda x, i: g.reshape(x, (-1, 5)), ShapeError),
        (lambda x, i: g.transpose(x, (0, 0)), ShapeError),
        (lambda x, i: g.broadcast_to(x, (3, 3)), ShapeError),
        (lambda x, i: x[5:], ShapeError),
        (lambda x, i: x[::0], OptionError),
        (lambda x, i: x[0, 0, 0], ShapeError),
        (lambda x, i: x[7], ShapeError),
        (lambda x, i: x["a"], OptionError),
        (lambda x, i: g.split(x, 2, 1), ShapeError),
        (lambda x, i: g.split(x, [1, 1], 1), ShapeError),
        (lambda x, i: g.concat([x, g.input("w", (2, 4))], 0), ShapeError),
        (lambda x, i: g.concat([]), OptionError),
        (lambda x, i: g.sum(x, 2), ShapeError),
        (lambda x, i: g.softmax(x, 3), ShapeError),
        (lambda x, i: g.matmul(x, g.input("v", (3,))), ShapeError),
        (lambda x, i: g.softmax_cross_entropy(x, i), ShapeError),
        (lambda x, i: g.linear(x, 0), ShapeError),
        (lambda x, i: g.one_hot(i, 0), OptionError),
        (lambda x, i: g.leaky_relu(x, 0.0), OptionError),
        (lambda x, i: g.gelu(x, "fast"), OptionError),
        (lambda x, i: g.power(x, "2"), OptionError),
        (lambda x, i: x + "1", OptionError),
        (lambda x, i: g.mul(x, [1, 2]), OptionError),
        (lambda x, i: g.relu(3.0), OptionError),
        (lambda x, i: list(x), OptionError),
        (lambda x, i: bool(x), OptionError),
        (lambda x, i: g.mirror(-1).__enter__(), OptionError),
        (lambda x, i: apply(Add, x), GraphError),
    ],
)
def test_mistakes_raise_graphc_errors(build, error):
    with pytest.raises(error):
        build(g.input("x", (2, 3)), g.input("i", (2, 3), "int32"))


def test_numbers_take_the_dtype_of_the_value_beside_them():
    x = g.input("x", (2,), "float16")
    for value in (x + 1, 1 + x, 2 * x, x - 1, 1 - x, x / 3, 3 / x, x**2, -x, x[0]):
        assert value.type.dtype.name == "float16"
    i = g.input("i", (2,), "int32")
    assert (i * 2 + 1).type.dtype.name == "int32"
    assert (i < 2).type.dtype.name == "bool"
