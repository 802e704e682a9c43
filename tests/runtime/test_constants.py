"""Constants in plans and programs: bytes, files, checkpoints, gradients, lookups."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import graphc as g
from graphc.errors import FeedError, PlanFileError, UnknownNameError
from graphc.view.explain import explain_value

TABLE = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)


def network():
    x = g.input("x", (4, 6))
    h = g.tanh(x @ g.constant(TABLE, name="table")) + g.constant(TABLE[0])
    return g.mean(g.linear(h, 3) ** 2)


def train(plan):
    program = g.bind(plan, poison=True)
    losses = [program.step(x=X)["loss"] for _ in range(3)]
    return program, losses


@pytest.mark.parametrize("allocate", ["none", "packed"])
def test_constants_take_part_in_training_and_stay(allocate):
    plan = g.plan(network(), optimizer=g.optim.Adam(0.05), allocate=allocate)
    program, losses = train(plan)
    assert losses[0] > losses[1] > losses[2]
    assert {*program.states} >= {"weight", "bias"}
    assert {*program.parameters} == {"weight", "bias"}
    assert "table" not in program.states
    with pytest.raises(UnknownNameError, match="'table'; it is a constant"):
        program.states["table"] = TABLE
    weight, bias = (program.parameters[name].astype(float) for name in ("weight", "bias"))
    h = np.tanh(X.astype(float) @ TABLE) + TABLE[0]
    expected = np.mean((h @ weight.T + bias) ** 2)
    assert program.step(x=X)["loss"] == pytest.approx(expected, rel=1e-6)


def test_constants_count_as_states_and_are_called_so():
    plan = g.plan(outputs={"y": g.input("x", (4, 6)) @ g.constant(TABLE, name="table")})
    assert plan.state_bytes == 256
    (table,) = plan.graph.states
    assert plan.placements[table].how == "state"
    assert "@table is f32[6,5], 120 B, a constant, which never changes." in explain_value(
        plan, table
    )


def test_a_plan_in_a_file_holds_its_constants(tmp_path):
    plan = g.plan(network(), optimizer=g.optim.Adam(0.05))
    g.save_plan(plan, tmp_path / "plan.json")
    loaded = g.load_plan(tmp_path / "plan.json")
    assert g.format_graph(loaded.graph) == g.format_graph(plan.graph)
    (first, losses), (second, again) = train(plan), train(loaded)
    assert losses == again
    assert all((first.states[n] == second.states[n]).all() for n in first.states)
    text = (tmp_path / "plan.json").read_text()
    at = text.index("base64='") + 20
    other = "A" if text[at] != "A" else "B"
    (tmp_path / "plan.json").write_text(text[:at] + other + text[at + 1 :])
    with pytest.raises(PlanFileError, match="changed after writing"):
        g.load_plan(tmp_path / "plan.json")


def test_checkpoints_leave_constants_out(tmp_path):
    program, _ = train(g.plan(network(), optimizer=g.optim.Adam(0.05)))
    program.save(tmp_path / "run.safetensors")
    assert "table" not in load_file(tmp_path / "run.safetensors")
    other = g.compile(network(), optimizer=g.optim.Adam(0.05), seed=5)
    other.load(tmp_path / "run.safetensors")
    assert other.step(x=X) == program.step(x=X)
    program.reset()
    assert program.step(x=X) == g.bind(program.plan).step(x=X)


def test_micro_batches_and_16_bits_share_constants():
    x = g.input("x", (2, 6))
    loss = g.mean(g.linear(x @ g.constant(TABLE), 3) ** 2)
    program = g.compile(loss, optimizer=g.optim.SGD(0.0), accumulate=2, precision="bf16")
    weight = program.parameters["weight"].astype(float)
    expected = np.mean((X.astype(float) @ TABLE @ weight.T) ** 2)
    assert program.step(x=X.reshape(2, 2, 6))["loss"] == pytest.approx(expected, rel=0.02)
    assert sum(state.role == "constant" for state in program.graph.states) == 1


def test_a_gradient_may_be_asked_for():
    table = g.constant(TABLE)
    (found,) = g.gradient(g.sum(table * table), [table])
    assert (g.compile(outputs={"d": found}).step()["d"] == 2 * TABLE).all()


def test_rows_that_a_table_does_not_have_are_refused_before_any_step():
    table = g.parameter("table", (4, 2))

    def program(rows):
        return g.compile(outputs=[g.gather(table, g.constant(rows)[1:])])

    program([9, 3, 0])
    with pytest.raises(FeedError, match=r"constant 'constant/\w+' contains numbers from 4 to 4"):
        program([0, 4])


def test_names_behave_as_those_of_a_mapping():
    program = g.compile(network(), optimizer=g.optim.SGD(0.1))
    for states in (program.parameters, program.states):
        assert "weight" in states
        assert "wieght" not in states
        assert 3 not in states
        assert states.get("wieght") is None
        assert states.get("wieght", 7) == 7
        assert states.pop("wieght", 8) == 8
        assert (states.get("weight") == states["weight"]).all()
        with pytest.raises(UnknownNameError, match="did you mean weight"):
            states["wieght"]
        with pytest.raises(KeyError) as caught:
            states["wieght"] = 3
        assert str(caught.value).endswith("there is no 'wieght'; did you mean weight?")
