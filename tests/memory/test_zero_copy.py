"""Concatenations: parts in place, where that is possible and pays."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import graphc as g
from graphc.errors import PlanError
from graphc.ir.builder import trace
from graphc.ir.types import Layout, TensorType, float32
from graphc.memory import inplace
from graphc.memory.allocate import Allocation
from graphc.memory.zero_copy import choose_parts, through_view
from graphc.models import densenet121, unet
from graphc.plans.check.check_plan import check_plan
from graphc.runtime.cpu.bind import numpy_calls

X = (2, 4, 16, 16)


def two_branches(axis=1):
    """Two halves that are computed, joined, and read again for their gradients."""
    x = g.input("x", X)
    with g.scope("a"):
        a = g.tanh(g.conv2d(x, 4, 1))
    with g.scope("b"):
        b = g.tanh(g.conv2d(x, 4, 1))
    joined = g.concat([a, b], axis=axis)
    return a, b, joined, g.sum(g.conv2d(joined, 3, 1, name="c") ** 2.0)


@pytest.mark.parametrize("axis", [0, 1])
def test_parts_lie_inside_and_nothing_is_copied(axis):
    _, _, joined, loss = two_branches(axis)
    program = g.compile(loss, optimizer=g.optim.SGD(0.1), kernels="numpy")
    plan = program.plan
    node = next(n for n in plan.graph.nodes if n.op.name == "concat" and n.phase == "forward")
    start = plan.address(node.output)
    for value in node.inputs:
        assert plan.placements[value].how == "part"
        assert plan.placements[value].over is node.output
        assert start <= plan.address(value) < start + node.output.type.bytes
    assert numpy_calls(node, plan, program._backend._arena, program._backend._arrays) == []
    assert joined.shape == node.output.shape


@pytest.mark.parametrize("kernels", ["native", "numpy"])
def test_the_bits_are_those_of_copies(kernels):
    feeds = {"x": np.random.default_rng(0).standard_normal(X).astype(np.float32)}
    runs = []
    for allocate in ("none", "inplace", "sharing", "packed"):
        *_, loss = two_branches()
        options = {"optimizer": g.optim.SGD(0.1), "allocate": allocate, "kernels": kernels}
        program = g.compile(loss, **options, poison=True, seed=2)
        losses = [program.step(feeds)["loss"] for _ in range(2)]
        runs.append((losses, dict(program.parameters)))
    for losses, parameters in runs[1:]:
        np.testing.assert_array_equal(losses, runs[0][0])
        for name, array in runs[0][1].items():
            np.testing.assert_array_equal(parameters[name], array)


def dense_block(layers):
    h = g.input("x", (2, 8, 12, 12))
    for layer in range(layers):
        with g.scope(f"layer{layer}"):
            h = g.concat([h, g.conv2d(g.relu(g.batch_norm(h)), 8, 3, padding=1)], axis=1)
    return g.sum(g.conv2d(h, 1, 1, name="end") ** 2.0)


def test_a_dense_block_is_one_buffer():
    """Each concatenation is a part of the next: bytes grow with the layers, not their square.

    The last one may stay apart: it is the largest, and the first not to be needed any more.
    """
    plan = g.plan(dense_block(6), optimizer=g.optim.SGD(0.1))
    joined = [
        node.output
        for node in plan.graph.nodes
        if node.op.name == "concat" and node.phase == "forward"
    ]
    buffers = {plan.placements[value].buffer for value in joined}
    assert len(buffers) <= 2 < len(joined)
    stacked = [value for value in joined if plan.placements[value].how == "part"]
    assert len(stacked) >= 4
    assert len({plan.address(value) for value in stacked}) == 1


@pytest.mark.parametrize(
    "model",
    [
        lambda: densenet121(batch=4, image=64, growth=16, blocks=(4, 6)),
        lambda: unet(batch=2, image=64, width=16),
    ],
)
def test_networks_with_concatenations_need_less(model, monkeypatch):
    packed = g.plan(model(), optimizer=g.optim.SGD(0.1))
    monkeypatch.setattr("graphc.memory.allocate.choose_parts", lambda *_: inplace.NO_PARTS)
    copied = g.plan(model(), optimizer=g.optim.SGD(0.1))
    assert packed.live_bytes < 0.97 * copied.live_bytes
    assert packed.arena_bytes < 0.97 * copied.arena_bytes


def hows(outputs, kernels="native"):
    plan = g.plan(outputs=outputs, training=True, kernels=kernels)
    node = next(n for n in plan.graph.nodes if n.op.name == "concat")
    return [plan.placements[value].how for value in node.inputs]


def test_sources_and_repeated_parts_are_copied():
    x, w = g.input("x", (4, 8)), g.parameter("w", (4, 8))
    assert "part" not in hows([g.concat([x, w])])
    y = g.tanh(x)
    assert "part" not in hows([g.concat([y, y], 1)])


def test_a_part_of_something_else_is_copied():
    y = g.tanh(g.input("x", (4, 8)))
    left, right = g.split(y, 2, axis=1)
    assert hows([g.concat([right, left], axis=1)]) == ["view", "view"]


@pytest.mark.parametrize("reorder", [False, True])
@pytest.mark.parametrize("allocate", ["none", "packed"])
def test_a_value_beside_parts_of_itself(reorder, allocate):
    """Circular padding: a copied part reads the bytes of one that lies in its place."""
    y = g.tanh(g.input("x", (4, 64)))
    z = g.concat([y[:, 62:], y, y[:, :2]], axis=1)
    outputs = {"a": g.sum(g.layer_norm(z)), "b": g.sum(g.tanh(y)), "z": z}
    program = g.compile(outputs=outputs, reorder=reorder, allocate=allocate, poison=True)
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    found = program.step(x=x)["z"]
    whole = found[:, 2:-2]
    np.testing.assert_array_max_ulp(whole, np.tanh(x.astype(np.float64)).astype(np.float32), 2)
    np.testing.assert_array_equal(found, np.pad(whole, ((0, 0), (2, 2)), mode="wrap"))


def test_a_view_of_all_of_a_value_takes_it_along():
    x = g.input("x", (4, 8))
    y, z = g.reshape(g.tanh(x), (2, 16)), g.reshape(g.exp(x), (2, 16))
    plan = g.plan(outputs=[g.concat([y, z])], training=True)
    whole = plan.placements[plan.graph.outputs["output0"]].buffer
    assert all(plan.placements[v].buffer == whole for n in plan.graph.nodes for v in n.outputs)


def test_a_part_that_a_reader_needs_in_one_piece_is_copied():
    """NumPy's softmax writes in one piece; its layer norm reads so."""
    x = g.input("x", (4, 8))
    both = [g.concat([g.softmax(x), g.softmax(g.tanh(x))], axis=1)]
    assert "part" not in hows(both, "numpy")
    y = g.tanh(x)
    with g.scope("norm"):
        read = g.layer_norm(y)
    assert hows([g.concat([y, g.exp(x)], axis=1), read], "numpy")[0] != "part"


def test_parts_without_a_gain_are_copied():
    """A part that is made long before the rest would keep the whole alive over a higher peak."""
    x = g.input("x", (1, 64))
    early = g.tanh(x)
    h = g.exp(x)
    for _ in range(3):
        h = g.sum(g.broadcast_to(h, (256, 64)) * 0.5 + 1.0, 0, keepdims=True)
    wide = g.broadcast_to(g.reshape(h, (1, 64)), (255, 64)) * 2.0
    plan = g.plan(outputs=[g.concat([early, wide])], training=True)
    assert plan.placements[plan.graph.nodes[0].output].how != "part"


@pytest.mark.parametrize(("columns", "inside"), [(8, 0), (64, 1)])
def test_a_part_is_chosen_only_if_it_lowers_what_is_live(columns, inside):
    """One is made long before the whole; the other alone pays where most of the whole is it."""
    x = g.input("x", (4, 8))
    early = g.tanh(x)
    late = g.broadcast_to(g.sum(g.exp(x) * 2.0), (4, columns)) * 2.0
    graph = trace({"y": g.concat([early, late], 1) * 1.0})
    allocation = Allocation(graph)
    chosen = choose_parts(graph, allocation.separate, allocation.target)
    assert list(chosen.places) == [late][:inside]


def test_the_peak_is_never_above_that_of_copies():
    for model in (two_branches()[-1], dense_block(4)):
        graph = g.plan(model, optimizer=g.optim.Adam()).graph
        allocation = Allocation(graph)
        copied = inplace.assign_storages(graph, allocation.live, {}, overwrite=True)
        assert allocation.merged.peak_bytes() <= copied.peak_bytes()


@pytest.mark.parametrize("change", ["offset", "strides", "neighbour"])
def test_the_checker_finds_a_part_that_is_misplaced(change):
    _, _, _, loss = two_branches()
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), kernels="numpy")
    check_plan(plan)
    node = next(n for n in plan.graph.nodes if n.op.name == "concat" and n.phase == "forward")
    first, second = node.inputs
    place = plan.placements[second]
    wrong = {
        "offset": replace(place, offset=place.offset + 64),
        "strides": replace(place, strides=(place.strides[0] // 2, *place.strides[1:])),
        "neighbour": replace(place, offset=plan.placements[first].offset),
    }[change]
    with pytest.raises(PlanError):
        check_plan(replace(plan, placements={**plan.placements, second: wrong}))


def test_the_checker_finds_a_whole_that_is_overwritten():
    """Something placed over one piece of one part, while the concatenation is still to be read."""
    _, _, _, loss = two_branches()
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1))
    node = next(n for n in plan.graph.nodes if n.op.name == "concat" and n.phase == "forward")
    whole = plan.buffers[plan.placements[node.output].buffer]
    step = plan.graph.position[node]
    other = next(
        b for b in plan.buffers
        if step < b.lifetime.first < whole.lifetime.last - 1 and b.kind != "workspace"
        and b.bytes <= whole.bytes and b.index != whole.index
    )  # fmt: skip
    buffers = list(plan.buffers)
    buffers[other.index] = replace(other, offset=whole.offset)
    with pytest.raises(PlanError):
        check_plan(replace(plan, buffers=tuple(buffers)))


def a_view(rng, x):
    """A view of all of x by a few transposes and reshapes, and the function that takes it."""
    moves = []
    for _ in range(int(rng.integers(1, 5))):
        if rng.random() < 0.5:
            order = tuple(rng.permutation(x.ndim).tolist())
            moves.append(lambda a, order=order: a.transpose(order))
        else:
            shape = list(x.shape)
            axis = int(rng.integers(len(shape)))
            if rng.random() < 0.5 and axis + 1 < len(shape):
                shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
            elif shape[axis] % 2 == 0:
                shape[axis : axis + 1] = [2, shape[axis] // 2]
            moved = x.reshape(shape)
            if not np.shares_memory(moved, x):
                continue
            moves.append(lambda a, shape=tuple(shape): a.reshape(shape))
        x = moves[-1](x)
    return x, lambda a: functools.reduce(lambda a, move: move(a), moves, a)


def test_layouts_of_roots_give_views_their_place():
    """Compared with NumPy's strides, for random views inside a larger array."""
    rng, count = np.random.default_rng(0), 0
    for _ in range(2000):
        shape = tuple(rng.choice([1, 2, 3, 4, 6], int(rng.integers(1, 5))).tolist())
        order = rng.permutation(len(shape))
        dense = np.zeros([shape[i] for i in order], np.float32).transpose(np.argsort(order))
        view, see = a_view(rng, dense)
        wide, axis = list(view.shape), int(rng.integers(view.ndim))
        wide[axis] += 3
        whole = np.zeros(wide, np.float32)
        part = whole[(slice(None),) * axis + (slice(2, 2 + view.shape[axis]),)]
        offset = part.ctypes.data - whole.ctypes.data
        root, seen = (TensorType(a.shape, float32) for a in (dense, view))
        found = through_view(
            root, Layout(0, dense.strides), seen, Layout(0, view.strides),
            Layout(offset, part.strides),
        )  # fmt: skip
        if found is None:
            continue
        count += 1
        inside = np.ndarray(shape, np.float32, whole, found.offset, found.strides)
        moved = see(inside)
        if not np.shares_memory(moved, whole):
            continue  # a reshape on the way needs a copy, which is checked view by view
        assert moved.ctypes.data == part.ctypes.data
        for extent, one, other in zip(part.shape, moved.strides, part.strides, strict=True):
            assert extent == 1 or one == other
    assert count > 1000


def test_gradients_of_attention_are_written_into_that_of_its_projection():
    """They are transposed and reshaped on the way to the concatenation."""
    x = g.input("x", (2, 6, 8))
    loss = g.sum(g.multi_head_attention(g.linear(x, 24), heads=2) ** 2.0)
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="cuda")
    (gradient,) = (n for n in plan.graph.nodes if n.op.name == "attention_gradient")
    assert {plan.placements[value].how for value in gradient.outputs} == {"part"}
    assert len({plan.placements[value].buffer for value in gradient.outputs}) == 1
    check_plan(plan)
