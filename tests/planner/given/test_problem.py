"""Reading problems: what a file may say, and errors that tell where it is wrong."""

import json

import pytest

from graphc.errors import ProblemError
from graphc.planner.given import read_problem
from graphc.planner.given.problem import parse_problem

NODE = {"id": 0, "cost": 1, "bytes": 4}


def nodes(*changes):
    return {"nodes": [{**NODE, "id": i, **change} for i, change in enumerate(changes)]}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "a problem: expected an object"),
        ({"nodes": {}}, "nodes: expected a list"),
        ({"nodes": []}, "at least one node"),
        (nodes({"input": []}), r"nodes\[0\]: unknown key \(did you mean inputs\?\), got 'input'"),
        (nodes({}) | {"budgets": 3}, r"a problem: unknown key \(did you mean budget\?\)"),
        ({"nodes": [3]}, r"nodes\[0\]: expected an object, got 3"),
        (nodes({"byte": 4}), r"nodes\[0\]: unknown key \(did you mean bytes\?\), got 'byte'"),
        ({"nodes": [{"id": 1, "costs": 4, "bytes": 4}]}, r"did you mean cost\?\), got 'costs'"),
        ({"nodes": [{"id": 1, "Bytes": 4}]}, r"did you mean bytes\?\), got 'Bytes'"),
        ({"nodes": [{"id": 1}]}, r"nodes\[0\]: the key 'cost' is missing"),
        (
            nodes({"cost": -1}),
            r"nodes\[0\].cost: expected a number from 0 to 70368744177664, got -1",
        ),
        (nodes({"cost": float("nan")}), "expected a number"),
        (nodes({"cost": "1"}), "expected a number"),
        (nodes({"bytes": -4}), r"nodes\[0\].bytes"),
        (nodes({"bytes": 1.5}), "expected an integer"),
        (nodes({"bytes": True}), "expected an integer"),
        (nodes({"workspace": -1}), "workspace"),
        (nodes(*[{"bytes": 2**46}] * 2**14), "nodes: the sum of all bytes must be below"),
        (nodes({"pinned": 1}), "true or false"),
        (nodes({"pinned": None}), "pinned: expected true or false, got null"),
        (nodes({"bytes": [True]}), "bytes: expected an integer .* got true"),
        (nodes({"inputs": [99]}), r"nodes\[0\].inputs: no node has the id 99"),
        ({**nodes({}), "outputs": []}, "expected at least one output or pinned node"),
        ({**nodes({}), "budget": "12 KiBs"}, "^budget must be a size such as 7GiB"),
        (nodes({}, {"id": 0}), "ids must be unique"),
        (nodes({"inputs": 3}), "expected a list, got 3"),
        (nodes({"inputs": [9]}), r"nodes\[0\].inputs: no node has the id 9"),
        (nodes({"inputs": [0]}), "node 0 reads node 0, which is not listed before it"),
        (nodes({"inputs": [1]}, {"inputs": [0]}), "without cycles"),
        ({**nodes({}), "outputs": [7]}, "outputs: no node has the id 7"),
        ({**nodes({}), "outputs": 0}, "expected a list"),
        (nodes({"bytes": [4, -1]}), r"nodes\[0\].bytes"),
        (nodes({"bytes": [4, 4]}, {"inputs": [0]}), r"has 2 outputs; select one, as in \[0, 0\]"),
        (nodes({"bytes": [4, 4]}, {"inputs": [[0, 2]]}), r"nodes\[1\].inputs: .* got 2"),
        (nodes({}, {"inputs": [0], "overwrites": [0]}), r"pairs \[output, input\]"),
        (nodes({}, {"inputs": [0], "overwrites": [[1, 0]]}), r"nodes\[1\].overwrites: .* got 1"),
        (nodes({}, {"inputs": [0], "overwrites": [[0, 1]]}), r"nodes\[1\].overwrites: .* got 1"),
        (nodes({"bytes": 5}, {"inputs": [0], "overwrites": [[0, 0]]}), "input of equal size"),
        (nodes({"after": [1]}, {}), "node 0 runs after node 1, which is not listed before it"),
        ({**nodes({}), "boundary": 3}, "boundary: no node has the id 3"),
        ({**nodes({}), "budget": -5}, "budget"),
        ({**nodes({}), "fixed_bytes": 0.5}, "fixed_bytes"),
    ],
)
def test_malformed_problems(given, message):
    with pytest.raises(ProblemError, match=message):
        parse_problem(given)


def test_malformed_files(tmp_path):
    path = tmp_path / "problem.json"
    with pytest.raises(ProblemError, match="cannot read"):
        read_problem(str(path))
    path.write_text('{"nodes": [\n  {"id": 0,,}]}')
    with pytest.raises(ProblemError, match=r"problem.json' is not valid JSON.*line 2 column"):
        read_problem(str(path))
    path.write_text(json.dumps(nodes({})).replace("[{", "[{" + f'"bytes": {"1" * 5000}, '))
    with pytest.raises(ProblemError, match=r"or is truncated: a number has too many digits$"):
        read_problem(str(path))
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProblemError, match="is not valid JSON, or is truncated"):
        read_problem(str(path))
    path.write_text(json.dumps(nodes({}, {"inputs": [0]})))
    assert read_problem(str(path)).inputs == ((), (0,))


def test_what_is_left_out_has_a_meaning():
    problem = parse_problem(nodes({}, {"inputs": [0]}, {"inputs": [0]}))
    assert problem.live_out == {1, 2}  # nobody reads them
    assert problem.workspace == (0, 0, 0)
    assert problem.budget is None
    assert parse_problem({**nodes({}), "budget": "12KiB"}).budget == 12 * 1024
    problem = parse_problem({**nodes({}, {"inputs": [0]}, {"inputs": [0]}), "outputs": [1]})
    assert problem.ids == (0, 1)
    assert problem.bound_bytes == 8
