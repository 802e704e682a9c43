import numpy as np
import pytest

import graphc as g
from graphc.errors import GraphError, TextError
from graphc.ir.builder import trace
from graphc.ir.verify import verify

GRAPH = """graph {
  %x: f32[2,3] = input()
  @w: f32[4,3] = parameter() {initial='uniform', scale=1.0}
  @frozen: f32[4] = parameter() {initial='constant', scale=0.0, trainable=False}
  %rate: f32[] = input() {default=0.5}
  %0: f32[2,4] = matmul(%x, @w) {transpose_b=True} [mirror=1]  # layer
  %1: f32[2,4] = add(%0, @frozen) [keep]  # layer
  %2: f32[2,1], %3: f32[2,3] = split(%1) {sizes=(1, 3), axis=1}
  %4: f32[] = sum(%3) {axes=(0, 1), keepdims=False}
  %0.m1: f32[2,4] = matmul(%x, @w) {transpose_b=True} [mirror]  # layer
  %5: f32[4,3] = matmul(%0.m1, %x) {transpose_a=True} [gradient]  # layer
  %6: f32[4,3] = sgd_update(@w, %5, %rate) {weight_decay=0.0} [update]
  output loss = %4
  output head = %2
}
"""


def test_round_trip_of_a_hand_written_graph():
    graph = g.parse_graph(GRAPH)
    verify(graph)
    assert g.format_graph(graph) == GRAPH
    copy = graph.nodes[4]
    assert copy.copy_of is graph.nodes[0]
    assert (copy.phase, copy.level, graph.nodes[0].mirror) == ("mirror", 1, 1)
    assert graph.states[1].trainable is False
    assert graph.inputs[-1].default == 0.5
    assert graph.kept == {graph.nodes[1].output}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[keep]", "[keep=x]", "unknown mark 'keep=x'"),
        ("axis=1}", "axis='1'}", "axis must have the type int, got '1'"),
        ("trainable=False", "trainable='no'", "trainable must be True or False"),
        ("{default=0.5}", "{value=0.5}", "needs the details"),
        ("%0.m1: f32[2,4] = matmul(%x, @w) {transpose_b=True}",
         "%0.m1: f32[2,4] = add(%0, %0)", "copy of %0, but differs"),
        ("= sum(%3)", "= summ(%3)", "unknown op 'summ'"),
        ("split(%1)", "split(%4)", r"%4 is read before line 9 defines it.*execution order"),
        ("add(%0, @frozen)", "add(%1, @frozen)", "read before"),
        ("sum(%3)", "sum(%9)", "%9 is not defined"),
        ("%4: f32[] = sum", "%4: f32[1] = sum", "declares f32.1., but the op returns f32"),
        ("%1: f32[2,4] = add", "%0: f32[2,4] = add", "%0 is defined twice"),
        ("{sizes=(1, 3), axis=1}", "{sizes=(1, 3)}", "needs the attributes"),
        ("{sizes=(1, 3), axis=1}", "{sizes=(1, 3), axis=open('x')}", "name=literal"),
        ("[keep]", "[kep]", "unknown mark 'kep'"),
        ("matmul(%x, @w) {transpose_b=True} [mirror=1]",
         "matmul(%x, @w) {} [mirror=1]", "inner extents"),
        ("f32[2,3] = input", "f99[2,3] = input", "unknown dtype 'f99'"),
        ("  output loss = %4", "  outptu loss = %4", "expected"),
        ("graph {", "graf {", "begin with the line"),
        ("@w: f32[4,3] = parameter", "%w: f32[4,3] = parameter", "states with @"),
    ],
)  # fmt: skip
def test_faults_show_the_line_and_its_neighbours(old, new, message):
    with pytest.raises(TextError, match=message) as error:
        g.parse_graph(GRAPH.replace(old, new, 1))
    assert "-->" in str(error.value)


def test_a_state_may_not_be_read_after_its_update():
    lines = GRAPH.splitlines()
    update = lines.pop(11)
    lines.insert(9, "  %7: f32[4,3] = sgd_update(@w, @w, %rate) {weight_decay=0.0} [update]")
    assert "sgd_update" in update
    with pytest.raises(GraphError, match=r"after .*sgd_update replaced it"):
        verify(g.parse_graph("\n".join(lines)))


def test_only_states_are_replaced():
    text = GRAPH.replace("sgd_update(@w, %5, %rate)", "sgd_update(%5, %5, %rate)")
    with pytest.raises(GraphError, match="not a state"):
        verify(g.parse_graph(text))


def test_verify_names_order_and_types():
    graph = trace({"y": g.relu(g.tanh(g.input("x", (2,))))})
    swapped = type(graph)(graph.nodes[::-1], graph.outputs)
    with pytest.raises(GraphError, match="before it is computed"):
        verify(swapped)
    other = trace({"y": g.sigmoid(g.input("x", (2,)))}).nodes[0]
    reader = graph.nodes[1].reading(other.outputs, None)
    foreign = type(graph)((graph.nodes[0], reader), {"y": reader.output})
    with pytest.raises(GraphError, match=r"reads <f32\[2\] from sigmoid> before it is computed"):
        verify(foreign)
    twice = type(graph)(graph.nodes[:1] * 2 + graph.nodes[1:], graph.outputs)
    with pytest.raises(GraphError, match="which another node already writes"):
        verify(twice)
    missing = type(graph)(graph.nodes[:1], graph.outputs)
    with pytest.raises(GraphError, match="output 'y'"):
        verify(missing)


def test_each_output_and_source_may_be_kept_alone():
    marked = GRAPH.replace("{sizes=(1, 3), axis=1}", "{sizes=(1, 3), axis=1} [keep=1]")
    marked = marked.replace("%x: f32[2,3] = input()", "%x: f32[2,3] = input() [keep]")
    graph = g.parse_graph(marked)
    assert g.format_graph(graph) == marked
    split = graph.nodes[2]
    assert graph.kept == {graph.inputs[0], graph.nodes[1].output, split.outputs[1]}


def test_numbers_of_numpy_print_as_literals():
    initial = g.Initial("constant", np.float64(0.5))
    graph = trace({"y": g.relu(g.parameter("w", (2,), initial=initial))})
    assert "scale=0.5}" in g.format_graph(graph)
    assert g.parse_graph(g.format_graph(graph)).states[0].initial == initial


def test_an_extent_has_up_to_18_digits():
    text = "graph {{\n  %x: u8[{}] = input()\n  output y = %x\n}}\n"
    graph = g.parse_graph(text.format("9" * 18))
    assert graph.inputs[0].shape == (10**18 - 1,)
    assert g.format_graph(graph) == text.format("9" * 18)
    for digits in ("1" + "0" * 18, "9" * 5000):
        with pytest.raises(TextError, match=f"an extent of {len(digits)} digits is too large"):
            g.parse_graph(text.format(digits))
