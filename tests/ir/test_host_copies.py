"""Rules of graphs with copies between device and host."""

import pytest

import graphc as g
from graphc import Graph
from graphc.errors import GraphcError, GraphError
from graphc.ir import builder
from graphc.ir.verify import verify
from graphc.ops.collective import Arrival
from graphc.ops.host_copy import (
    CopyToDevice,
    CopyToHost,
    begin_copy_to_device,
    begin_copy_to_host,
    finish_copy,
)


@pytest.fixture
def x():
    return g.tanh(g.input("x", (4, 6)))


def graph_of(*outputs):
    graph = builder.trace({f"y{i}": value for i, value in enumerate(outputs)})
    verify(graph)
    return graph


def test_a_value_goes_and_comes_back(x):
    begun = begin_copy_to_host(x)
    there = finish_copy(begun)
    fetched = begin_copy_to_device(there)
    back = finish_copy(fetched)
    graph = graph_of(back * 2.0)
    assert [value.on_host for value in (x, begun, there, fetched, back)] == [0, 1, 1, 0, 0]
    assert [node.op.name for node in graph.nodes[1:5]] == [
        "copy_to_host", "arrival", "copy_to_device", "arrival"
    ]  # fmt: skip
    assert g.format_graph(g.parse_graph(g.format_graph(graph))) == g.format_graph(graph)
    assert back.producer.awaited is fetched.producer
    assert x.producer.host_copy is None


def test_a_value_may_be_fetched_twice(x):
    there = finish_copy(begin_copy_to_host(x))
    first, second = (finish_copy(begin_copy_to_device(there)) for _ in range(2))
    graph_of(first + second)


def test_an_unfinished_copy_is_not_read(x):
    with pytest.raises(GraphError, match="while copy_to_host is still running"):
        graph_of(finish_copy(begin_copy_to_device(begin_copy_to_host(x))))
    there = finish_copy(begin_copy_to_host(x))
    with pytest.raises(GraphError, match="while copy_to_device is still running"):
        graph_of(begin_copy_to_device(there) * 2.0)


def test_an_unfinished_copy_is_not_only_kept(x):
    """An arrival waits for its first operand, and does not wait for the others."""
    begun = begin_copy_to_host(x)
    with pytest.raises(GraphError, match="is still running"):
        graph_of(builder.apply(Arrival, x, begun).output)


def test_kernels_read_device_memory(x):
    there = finish_copy(begin_copy_to_host(x))
    for reader in (g.tanh(there), there + x, g.reshape(there, (24,))):
        with pytest.raises(GraphError, match="which is on the host; copy it to the device"):
            graph_of(reader)
    with pytest.raises(GraphError, match="which is on the host"):
        graph_of(finish_copy(begin_copy_to_host(there)))
    with pytest.raises(GraphError, match="which is on the host"):
        graph_of(builder.apply(Arrival, x, there).output)


def test_the_result_is_on_the_device(x):
    there = finish_copy(begin_copy_to_host(x))
    with pytest.raises(GraphError, match="output 'y0' is on the host"):
        graph_of(there)
    with pytest.raises(GraphError, match="unfinished result"):
        graph_of(begin_copy_to_host(x))


def test_a_copy_to_the_device_reads_the_host(x):
    copy = builder.apply(CopyToDevice, x).output
    with pytest.raises(GraphError, match="which is not on the host"):
        graph_of(builder.apply(Arrival, copy, x).output)
    with pytest.raises(GraphError, match="needs a value on the host"):
        begin_copy_to_device(x)


def test_a_wait_keeps_the_source(x):
    copy = builder.apply(CopyToHost, x).output
    there = builder.apply(Arrival, copy).output
    with pytest.raises(GraphError, match="does not keep %0, the source"):
        graph_of(finish_copy(begin_copy_to_device(there)))


def test_each_copy_has_one_wait(x):
    copy = begin_copy_to_host(x)
    first, second = finish_copy(copy), finish_copy(copy)
    both = [finish_copy(begin_copy_to_device(there)) for there in (first, second)]
    with pytest.raises(GraphError, match="copy_to_host is awaited twice"):
        graph_of(*both)
    graph = Graph((x.producer, begin_copy_to_host(x).producer), {"x": x})
    with pytest.raises(GraphError, match="no node waits for copy_to_host"):
        verify(graph)


def test_only_copies_are_waited_for(x):
    with pytest.raises(GraphError, match="needs the result of begin_copy_to_host"):
        finish_copy(x)


def test_copies_have_no_gradient(x):
    y = finish_copy(begin_copy_to_device(finish_copy(begin_copy_to_host(x))))
    with pytest.raises(GraphcError, match="insert copies after differentiation"):
        g.gradient(g.sum(y), [x])
