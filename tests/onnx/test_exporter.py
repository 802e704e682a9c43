"""Networks written as ONNX: what others compute of them, and what comes back."""

import numpy as np
import onnx
import pytest
from models.test_zoo import DEEP, SMALL, quick_and_slow
from onnx.reference import ReferenceEvaluator
from onnx_files import Erf, array_of, recorded_in

import graphc as g
from graphc.devices.device import KERNELS
from graphc.errors import GraphcError, OnnxError, OptionError
from graphc.ir import builder
from graphc.onnx.written import written
from graphc.runtime.feeds import random_feeds

REFERENCED = ("gpt2", "lstm", "mlp", "preact_resnet", "unet")
"""Networks that onnx's reference runs quickly, and in training draws no numbers for."""

QUICK = ("gpt2", "unet", "vit")
"""A network of tokens, one of images, and one of both."""


def saved(path, name, training=False, dtype="float64", kernels="native"):
    """A program of a zoo network, and what it was saved as; its states differ from their first."""
    loss = SMALL[name](dtype=dtype)
    optimizer = g.optim.SGD(1e-3) if training else None
    program = g.compile(loss, optimizer=optimizer, kernels=kernels)
    feeds = {x.name: a for x, a in random_feeds(program.graph, 3).items()}
    for state, array in program.states.items():
        if array.dtype.kind == "f":
            waves = 0.01 * np.sin(np.arange(array.size)).reshape(array.shape)
            program.states[state] = array + waves.astype(array.dtype)
    g.onnx.save(program, path, training=training)
    return program, feeds


@pytest.mark.parametrize("name", quick_and_slow(REFERENCED, ["preact_resnet", "mlp"]))
def test_reference_gives_the_loss(name, tmp_path):
    for training in (False, True):
        program, feeds = saved(tmp_path / "net.onnx", name, training, kernels="numpy")
        if training and any(node.op.name == "dropout" for node in program.graph.nodes):
            continue
        model = onnx.load(tmp_path / "net.onnx")
        onnx.checker.check_model(model, full_check=True)
        (found,) = ReferenceEvaluator(model, new_ops=[Erf]).run(None, feeds)
        np.testing.assert_allclose(found, program.step(feeds)["loss"], rtol=1e-9)


@pytest.mark.parametrize("name", quick_and_slow(SMALL, {*DEEP, "lstm by layer", "mlp"}))
def test_the_recorded_options_give_the_same_plan(name, tmp_path):
    """Nodes of a group are recorded side by side, so groups of its gradient may be others."""
    for training in (False, True):
        program, _ = saved(tmp_path / "net.onnx", name, training, "float32", "numpy")
        found = recorded_in(tmp_path / "net.onnx")
        loss = found.graph.outputs["loss"]
        optimizer = g.optim.SGD(1e-3) if training else None
        again = g.plan(loss, optimizer=optimizer, kernels="numpy")
        assert again.text() == program.plan.text()
        assert g.format_graph(again.graph) == g.format_graph(program.plan.graph)
        onnx.checker.check_model(onnx.load(tmp_path / "net.onnx"), full_check=True)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_norm_of_a_training_step_is_by_the_batch_for_every_reader(dtype, tmp_path):
    """Outside of training, too, and with the metadata or without: the file's nodes say so."""
    x = g.input("x", (4, 3, 2, 2), dtype)
    with g.scope("body"):
        y = g.batch_norm(x, name="norm")
    program = g.compile(g.mean(y * y * y), optimizer=g.optim.SGD(1e-3))
    g.onnx.save(program, tmp_path / "net.onnx", training=True)
    given = np.random.default_rng(0).gamma(1.0, 2.0, x.shape).astype(dtype)
    exact = given.astype(np.float64)
    spread = np.sqrt(exact.var((0, 2, 3), keepdims=True) + 1e-5)
    wanted = (((exact - exact.mean((0, 2, 3), keepdims=True)) / spread) ** 3).mean()
    plain = onnx.load(tmp_path / "net.onnx")
    del plain.metadata_props[:]
    networks = [g.onnx.load(source) for source in (tmp_path / "net.onnx", plain)]
    for network in networks:
        for options in ({}, {"optimizer": g.optim.SGD(1e-3)}):
            again = g.compile(network.output, **options)
            network.initialize(again)
            found = again.step(x=given)["loss"].astype(np.float64)
            np.testing.assert_allclose(found, wanted, rtol=1e-9 if dtype == "float64" else 5e-3)
    recorded = g.plan(networks[0].output).graph
    assert {node.scope for node in recorded.nodes} == {"", "body/norm"}
    assert {r.reason for r in networks[0].report} == {"recorded by graphc"}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", quick_and_slow(SMALL, set(SMALL) - set(QUICK)))
def test_a_reloaded_model_steps_to_the_same_bits(name, kernels, tmp_path):
    program, feeds = saved(tmp_path / "step.onnx", name, True, "float32", kernels)
    g.onnx.save(program, tmp_path / "net.onnx")
    network = g.onnx.load(tmp_path / "net.onnx")
    assert {**network.inputs} == {x.name: x for x in network.inputs.values()}
    again = g.compile(network.outputs["loss"], optimizer=g.optim.SGD(1e-3), kernels=kernels)
    network.initialize(again)
    # the members of a group are saved where the group stood, so others may join it
    assert kernels == "native" or again.plan.text() == program.plan.text()
    for _ in range(2):
        np.testing.assert_array_equal(again.step(feeds)["loss"], program.step(feeds)["loss"])
    for state, array in program.states.items():
        np.testing.assert_array_equal(again.states[state], array, strict=True)


@pytest.mark.parametrize(
    "name", quick_and_slow(["unet", "gpt2", "preact_resnet", "vit"], ["gpt2", "preact_resnet"])
)
def test_read_without_what_is_recorded_the_loss_has_the_same_bits(name, tmp_path):
    program, feeds = saved(tmp_path / "net.onnx", name, True, "float32", "numpy")
    model = onnx.load(tmp_path / "net.onnx")
    del model.metadata_props[:]
    network = g.onnx.load(model)
    again = g.compile(network.outputs["loss"], optimizer=g.optim.SGD(1e-3), kernels="numpy")
    network.initialize(again)
    np.testing.assert_array_equal(again.step(feeds)["loss"], program.step(feeds)["loss"])


def test_numbers_that_are_drawn_are_drawn_again(tmp_path):
    """Recorded or not; whoever else runs the file draws others."""
    shape = (40, 50)
    drawn = {
        "normal": g.normal(shape, 1.0, 0.25),
        "uniform": g.uniform(shape, -2.0, 3.0, "float64"),
    }
    g.onnx.save(drawn, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(model, full_check=True)
    wanted = g.compile(outputs=drawn).step()
    del model.metadata_props[:]
    for source in (tmp_path / "net.onnx", model):
        found = g.compile(outputs=g.onnx.load(source).outputs).step()
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, strict=True)


def test_trainable_parameters_are_recorded_and_can_be_chosen(tmp_path):
    h = g.linear(g.input("x", (2, 3)), 4, name="first", trainable=False)
    loss = g.mean(g.linear(g.relu(h), 2, name="last"))
    g.onnx.save(loss, tmp_path / "net.onnx")

    def trained(**choice):
        network = g.onnx.load(tmp_path / "net.onnx", **choice)
        states = g.plan(network.outputs["loss"], optimizer=g.optim.SGD(0.1)).graph.states
        found = {s.name for s in states if s.trainable}
        assert found == {r.state for r in network.report if r.is_trained}
        return found

    assert trained() == {"last/weight", "last/bias"}
    assert trained(trainable="weight") == {"first/weight", "last/weight"}
    assert trained(trainable=["first/bias"]) == {"first/bias"}
    assert not dict(g.onnx.load(tmp_path / "net.onnx", weights=False).states)


def test_states_are_those_of_the_program(tmp_path):
    program, _ = saved(tmp_path / "net.onnx", "preact_resnet", kernels="numpy")
    model = onnx.load(tmp_path / "net.onnx")
    found = {tensor.name: array_of(tensor) for tensor in model.graph.initializer}
    assert set(found) == {state.name for state in program.graph.states}
    for name, array in found.items():
        np.testing.assert_array_equal(array, program.states[name], strict=True)


def test_outputs_begin_as_a_program_of_that_seed(tmp_path):
    loss = SMALL["mlp"]()
    g.onnx.save(loss, tmp_path / "net.onnx", seed=5)
    program = g.compile(loss, seed=5)
    for tensor in onnx.load(tmp_path / "net.onnx").graph.initializer:
        np.testing.assert_array_equal(array_of(tensor), program.states[tensor.name])


def test_outputs_go_out_with_the_states_of_a_program(tmp_path):
    x, y = g.input("x", (2, 3), "float64"), g.input("y", (2, 4), "float64")
    out = g.linear(x, 4, name="out")
    program = g.compile(g.mse(out, y), optimizer=g.optim.SGD(0.5))
    feeds = {"x": np.ones((2, 3)), "y": np.ones((2, 4))}
    program.step(feeds)
    other = g.linear(x, 2, name="other")
    g.onnx.save({"out": out, "other": other}, tmp_path / "net.onnx", seed=3, states=program.states)
    model = onnx.load(tmp_path / "net.onnx")
    assert [each.name for each in model.graph.input] == ["x"]
    found = ReferenceEvaluator(model).run(None, {"x": feeds["x"]})
    held = program.states
    np.testing.assert_allclose(found[0], feeds["x"] @ held["out/weight"].T + held["out/bias"])
    begun = g.compile(outputs={"other": other}, seed=3).step(x=feeds["x"])["other"]
    np.testing.assert_allclose(found[1], begun)
    for states, told in (
        ({"out/bias": np.zeros(3)}, r"'out/bias' must be f64\[4\], got float64\[3\]"),
        (4, "must map names of states to arrays"),
        ({"out/wieght": held["out/weight"]}, "'out/wieght'; did you mean out/weight"),
        (
            dict.fromkeys("ab"),
            "none of the 2 given states, such as 'a'; choose one of: out/weight, out/bias",
        ),
    ):
        with pytest.raises(OptionError, match=told):
            g.onnx.save(out, tmp_path / "net.onnx", states=states)
    with pytest.raises(OptionError, match="omit seed and states"):
        g.onnx.save(program, tmp_path / "net.onnx", states=program.states)


def test_a_program_that_repeats_and_fuses_is_written_as_its_network(tmp_path):
    for options in ({"recompute": "sublinear"}, {"fuse": True}):
        program = g.compile(SMALL["preact_resnet"](), optimizer=g.optim.SGD(0.1), **options)
        g.onnx.save(program, tmp_path / "net.onnx", training=True)
        found = recorded_in(tmp_path / "net.onnx").graph.outputs["loss"]
        again = g.plan(found, optimizer=g.optim.SGD(0.1), **options)
        assert g.format_graph(again.graph) == g.format_graph(program.plan.graph)


def test_names_that_clash_stay_apart(tmp_path):
    """Inputs, states and outputs have names of their own in graphc, and share them in ONNX."""
    x = g.input("y", (2, 3))
    w = g.parameter("y", (3,))
    total = x + w
    g.onnx.save({"y": total, "again": total, "fed": x, "held": w}, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [each.name for each in model.graph.output] == ["y_1", "again", "fed", "held"]
    feeds = np.ones((2, 3), np.float32)
    found = ReferenceEvaluator(model).run(None, {"y": feeds})
    for array, wanted in zip(found, (feeds, feeds, feeds, np.zeros(3)), strict=True):
        np.testing.assert_array_equal(array, wanted)
    assert list(recorded_in(tmp_path / "net.onnx").graph.outputs) == ["y", "again", "fed", "held"]


def test_an_input_with_a_default_may_be_left_out(tmp_path):
    x, factor = g.input("x", (2,)), g.input("factor", (), default=2.5)
    g.onnx.save({"y": x * factor}, tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    (found,) = ReferenceEvaluator(model).run(None, {"x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(found, [2.5, 2.5])


def test_constants_are_held_once(tmp_path):
    table = np.arange(3000.0).reshape(100, 30)
    y = g.matmul(g.input("x", (2, 100), "float64"), g.constant(table))
    g.onnx.save({"y": y}, tmp_path / "net.onnx")
    size = (tmp_path / "net.onnx").stat().st_size
    assert table.nbytes < size < 1.2 * table.nbytes
    (state,) = recorded_in(tmp_path / "net.onnx").states.values()
    np.testing.assert_array_equal(state.initial.array, table)


def test_a_file_that_was_changed_is_not_what_it_records(tmp_path):
    x = g.input("x", (2, 3), "float64")
    y = g.relu(g.linear(x * g.constant(np.array([1.0, 2.0, 3.0])), 4))
    g.onnx.save({"y": y}, tmp_path / "net.onnx")

    def is_recorded(change):
        model = onnx.load(tmp_path / "net.onnx")
        change(model)
        onnx.save(model, tmp_path / "changed.onnx")
        return recorded_in(tmp_path / "changed.onnx") is not None

    def other_constant(model):
        tensor = next(t for t in model.graph.initializer if t.name.startswith("constant/"))
        tensor.raw_data = np.array([1.0, 2.0, 4.0]).tobytes()

    def other_weight(model):
        tensor = next(t for t in model.graph.initializer if t.name == "weight")
        tensor.raw_data = bytes(len(tensor.raw_data))

    relu = next(n for n in onnx.load(tmp_path / "net.onnx").graph.node if n.op_type == "Relu")
    assert is_recorded(lambda model: None)
    assert is_recorded(other_weight)
    assert not is_recorded(other_constant)
    assert not is_recorded(lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    assert not is_recorded(lambda model: model.graph.node.append(relu))
    assert not is_recorded(lambda model: setattr(model.opset_import[0], "version", 22))
    assert not is_recorded(lambda model: setattr(model.metadata_props[0], "value", "graph {"))


def test_a_record_that_is_damaged_is_passed_over(tmp_path):
    """Whatever stands there, the file is read; what it computes does not depend on the record."""
    x = g.input("x", (2, 3))
    h = g.linear(x * g.constant(np.array([1, 2, 3], np.float32)), 4)
    g.onnx.save(g.mean(g.layer_norm(g.relu(h))), tmp_path / "net.onnx")
    model = onnx.load(tmp_path / "net.onnx")
    (text,) = (e.value for e in model.metadata_props if e.key == "graphc.graph")
    feeds = {"x": np.ones((2, 3), np.float32)}
    wanted, rng, recorded = None, np.random.default_rng(0), 0
    for _ in range(40):
        at, length = (int(n) for n in rng.integers(0, [len(text), 6]))
        model.metadata_props[0].value = text[:at] + text[at + length :]
        network = g.onnx.load(model)
        recorded += network.report[0].reason == "recorded by graphc"
        program = g.compile(network.outputs["loss"], kernels="numpy", reorder=False)
        network.initialize(program)
        (found,) = program.step(feeds).values()
        wanted = found if wanted is None else wanted
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert recorded < 20


def test_external_data(tmp_path):
    path = tmp_path / "net.onnx"
    program, feeds = saved(path, "mlp")
    inside = onnx.load(path)
    for _ in range(2):  # what an earlier file had beside it goes
        program.states["layer0/weight"] = program.states["layer0/weight"] * 2
        g.onnx.save(program, path, external_data=True)
        structure = onnx.load(path, load_external_data=False)
        names = {tensor.external_data[0].value for tensor in structure.graph.initializer}
        assert {entry.name for entry in tmp_path.iterdir()} == {"net.onnx", *names}
        onnx.checker.check_model(str(path), full_check=True)
    (found,) = ReferenceEvaluator(onnx.load(path)).run(None, feeds)
    np.testing.assert_allclose(found, program.step(feeds)["loss"], rtol=1e-9)
    g.onnx.save(program, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.onnx"]
    assert len(onnx.load(path).graph.node) == len(inside.graph.node)


def test_large_states_go_beside_the_file(monkeypatch, tmp_path):
    from graphc.onnx import exporter

    monkeypatch.setattr(exporter, "MOST_INLINE_BYTES", 1000)
    monkeypatch.setattr(exporter, "MOST_BYTES", 2000)
    loss = SMALL["mlp"]()
    g.onnx.save(loss, tmp_path / "a.onnx")
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(OptionError, match="smaller than 2 GiB"):
        g.onnx.save(SMALL["vgg16"](), tmp_path / "b.onnx", external_data=False)
    assert len(list(tmp_path.iterdir())) == 2


def test_failed_writes_leave_no_file(monkeypatch, tmp_path):
    from graphc.onnx import exporter

    path = tmp_path / "net.onnx"
    program, _ = saved(path, "mlp")
    before = path.read_bytes()

    def torn(made, content):
        yield b"half"
        raise OSError(28, "No space left on device")

    real = exporter._parts
    calls = iter([real, torn])
    monkeypatch.setattr(exporter, "_parts", lambda *given: next(calls)(*given))
    with pytest.raises(OnnxError, match="No space left"):
        g.onnx.save(program, path, external_data=True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.onnx"]
    assert path.read_bytes() == before


def test_mistakes(tmp_path):
    x = g.input("x", (1, 2, 4, 4))
    mean = g.group_norm(x, 2).producer.outputs[1]
    for source, told in (
        (mean, "output mean of group_norm"),
        (g.gradient(g.mean(g.max_pool2d(x, 2)), [x])[0], "op max_pool2d_gradient"),
    ):
        with pytest.raises(OnnxError, match=told):
            g.onnx.save({"y": source}, tmp_path / "net.onnx")
    with pytest.raises(OnnxError, match="No such file"):
        g.onnx.save({"y": x}, tmp_path / "none" / "net.onnx")
    with pytest.raises(OptionError, match="external_data must be True"):
        g.onnx.save({"y": x}, tmp_path / "net.onnx", external_data="always")
    with pytest.raises(OptionError, match="omit seed and states"):
        g.onnx.save(g.compile(outputs={"y": g.relu(x)}), tmp_path / "net.onnx", seed=1)
    with pytest.raises(GraphcError):
        g.onnx.save([], tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


def test_writing_is_deterministic(tmp_path):
    files = []
    for name in ("a", "b"):
        g.onnx.save(SMALL["vit"](), tmp_path / name)
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]


def test_a_mask_is_made_once():
    x = g.input("x", (2, 5, 8))
    for _ in range(3):
        x = g.attention(x, x, x, causal=True)
    made = written(builder.trace({"y": x}), False).model
    assert [node.op_type for node in made.graph.node].count("Trilu") == 1
