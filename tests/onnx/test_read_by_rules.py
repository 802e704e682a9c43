"""Exported ops, read by the rules for any file: without the metadata, as other tools leave them."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import graphc as g


def without_metadata(path):
    """The model of a file, of which nothing but its nodes says what it is."""
    model = onnx.load(path)
    del model.metadata_props[:]
    return model


def results(outputs, feeds, network=None):
    program = g.compile(outputs=dict(outputs))
    if network is not None:
        network.initialize(program)
    return program.step(feeds)


@pytest.mark.parametrize("trainable", [None, "."])
def test_constants_of_a_rule_stand_beside_equal_ones_of_the_file(trainable, tmp_path):
    x, grid = g.input("x", (1, 2, 4, 4), "float64"), g.input("grid", (1, 3, 3, 2), "float64")
    sampled = {"y": g.grid_sample(x, grid)}
    g.onnx.save(sampled, tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal(x.shape), "grid": rng.uniform(-1, 1, grid.shape)}
    network = g.onnx.load(without_metadata(tmp_path / "net.onnx"), trainable=trainable)
    if trainable is None:
        assert not any(entry.is_trained for entry in network.report)
    found = results(network.outputs, feeds, network)["y"]
    np.testing.assert_allclose(found, results(sampled, feeds)["y"], rtol=1e-12)


def shifted(x, count, bits):
    """Both shifts of Python's whole numbers, the first cut to so many bits with a sign."""
    moved = x << count if 0 <= count < bits else 0
    low = moved % 2**bits
    return low - 2**bits * (low >= 2 ** (bits - 1)), x >> (count if 0 <= count < bits else bits)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_shifts_by_any_count(dtype, tmp_path):
    bits, ends = 8 * np.dtype(dtype).itemsize, np.iinfo(dtype)
    numbers = [ends.min, ends.min + 1, -1000, -1, 0, 1, 77, ends.max]
    counts = [ends.min, -1, 0, 1, 7, bits - 2, bits - 1, bits, bits + 3]
    x, count = g.input("x", (len(numbers), 1), dtype), g.input("count", (len(counts),), dtype)
    outputs = {"left": g.left_shift(x, count), "right": g.right_shift(x, count)}
    feeds = {"x": np.array(numbers, dtype)[:, None], "count": np.array(counts, dtype)}
    wanted = np.array([[shifted(n, c, bits) for c in counts] for n in numbers], dtype)
    g.onnx.save(outputs, tmp_path / "net.onnx")
    model = without_metadata(tmp_path / "net.onnx")
    onnx.checker.check_model(model, full_check=True)
    with np.errstate(over="ignore"):
        reference = ReferenceEvaluator(model).run(None, feeds)
    again = results(g.onnx.load(model).outputs, feeds)
    for index, name in enumerate(outputs):
        for found in (again[name], reference[index], results(outputs, feeds)[name]):
            np.testing.assert_array_equal(found, wanted[..., index], strict=True)


GEOMETRIES = [
    ((5, 6), (3, 2), (2, 1), ((1, 1), (0, 1)), (1, 2)),
    ((2, 4), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    ((7,), 3, 2, 1, 1),
]
"""Extents, window, stride, padding and dilation. Where a window is longer than a column, as in the
second, onnx's reference numbers other places than it takes, unlike onnxruntime."""


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_places_of_a_pool_and_the_way_back(geometry, tmp_path):
    extents, *frame = geometry
    x = g.input("x", (2, 3, *extents), "float64")
    y, places = g.max_pool_with_indices(x, *frame)
    outputs = {"y": y, "places": places, "back": g.max_unpool(y, places, extents)}
    g.onnx.save(outputs, tmp_path / "net.onnx")
    model = without_metadata(tmp_path / "net.onnx")
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": np.random.default_rng(0).standard_normal(x.shape)}
    runs = [results(outputs, feeds), results(g.onnx.load(model).outputs, feeds)]
    if geometry is not GEOMETRIES[1]:
        found = ReferenceEvaluator(model).run(None, feeds)
        runs.append(dict(zip(outputs, found, strict=True)))
    flat = feeds["x"].reshape(2, 3, -1)
    for held in runs:
        taken = np.take_along_axis(flat, held["places"].reshape(2, 3, -1), 2)
        np.testing.assert_array_equal(taken.reshape(y.shape), held["y"])
        np.testing.assert_array_equal(held["y"], runs[0]["y"])
        np.testing.assert_array_equal(held["back"] != 0, np.isin(feeds["x"], held["y"]))
        np.testing.assert_array_equal(
            held["back"][held["back"] != 0], feeds["x"][held["back"] != 0]
        )
