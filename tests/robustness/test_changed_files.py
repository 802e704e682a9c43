"""Files with random changes are refused by an error of graphc, or are used without any."""

import json
import re
from functools import cache

import numpy as np
import pytest
from ops.test_attributes import ALONE, alone
from plans.changed_files import planned, sealed
from robustness.mutations import mutate, mutated_attribute, mutated_bytes, mutated_text
from robustness.trials import check

import graphc as g
from graphc import read_notes
from graphc.errors import TextError
from graphc.memory.allocate import Allocation
from graphc.planner.given import read_problem, solve
from graphc.planner.pack import pack
from graphc.planner.pack.csv_file import read_buffers, write_offsets
from graphc.plans.plan_file import checked_plan

counts = pytest.mark.parametrize("count", [150, pytest.param(3_000, marks=pytest.mark.slow)])

SMALL_BYTES = 2**20
"""The largest arena in which a step is run."""


def run_a_step(plan):
    """Bind a plan and run a step on zeros, if it is small and for a CPU."""
    if plan.arena_bytes > SMALL_BYTES or plan.device.kind != "cpu":
        return
    feeds = {x.name: np.zeros(x.shape, x.type.dtype.numpy) for x in plan.graph.inputs}
    g.Program(plan, poison=True).step(feeds)


@cache
def convolution():
    """A plan with windows, norms, running statistics, dropout and a guarded step."""
    x, t = g.input("x", (2, 3, 6, 6)), g.input("t", (2,), "int32")
    h = g.relu(g.batch_norm(g.conv2d(x, 4, 3, padding=1, groups=1)))
    h = g.upsample2d(g.average_pool2d(g.max_pool2d(h, 2), 3, 1, 1), 2)
    h = g.dropout(g.reshape(h, (2, -1)), 0.25) * g.constant(np.arange(2.0), dtype="float32")[0]
    h = h + g.constant(np.arange(float(h.shape[1])), dtype="float32")
    loss = g.softmax_cross_entropy(g.linear(h, 3, name="head"), t)
    return g.plan(loss, optimizer=g.optim.AdamW(0.01), clip_norm=1.0)


@cache
def attention():
    """A plan with lookups, fused attention, layer norms and two micro-batches."""
    x, t = g.input("x", (2, 4), "int32"), g.input("t", (8,), "int32")
    h = g.embedding(x, 5, 8)
    h = h + g.multi_head_attention(
        g.linear(g.layer_norm(h), 24, name="qkv"), 2, causal=True, form="fused"
    )
    loss = g.softmax_cross_entropy(g.reshape(g.linear(h, 5, name="head"), (8, 5)), t)
    return g.plan(loss, optimizer=g.optim.SGD(0.1, 0.9), accumulate=2, device="a100")


@cache
def few_nodes():
    """A plan with a view, a random op and a moment."""
    x = g.input("x", (4, 6))
    h = g.dropout(g.linear(x[:, 1:5], 3), 0.5)
    return g.plan(g.mse(h, g.full(h.shape, 0.5)), optimizer=g.optim.SGD(0.1, 0.9))


def plan_texts():
    """Most of few nodes: the time that a case takes grows with them."""
    plans = (*[few_nodes()] * 9, planned(), convolution(), attention())
    return [plan.to_json() for plan in plans]


def graph_texts():
    """A graph of each op, and those of plans."""
    alone_texts = [g.format_graph(alone(name)) for name in ALONE]
    plans = [g.format_graph(plan.graph) for plan in (planned(), convolution(), attention())]
    return [*alone_texts, *plans * 10]


_STATED = re.compile(r"line (\d+): the line declares .*, but the op returns (.*)")


def parsed(text):
    """A graph, with stated types that do not fit put right: what is changed gets further so."""
    for _ in range(8):
        try:
            return g.parse_graph(text)
        except TextError as error:
            found = _STATED.search(error.message)
            if found is None:
                raise
            lines, at = text.strip().splitlines(), int(found[1]) - 1
            left, equals, right = lines[at].partition(" = ")
            types = re.split(r", (?=\w+\[)", found[2])
            names = re.findall(r"[%@][\w./-]+(?=: )", left)
            if len(names) != len(types):
                raise
            stated = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
            lines[at] = f"{stated}{equals}{right}"
            text = "\n".join(lines)
    return g.parse_graph(text)


@counts
def test_a_changed_graph_text_is_refused_or_planned_and_run(count):
    texts = graph_texts()

    def case(random):
        text = random.choice(texts)
        for _ in range(random.choice([1, 1, 2])):
            change = random.choice([mutated_text, mutated_attribute])
            text = change(text, random)
        run_a_step(Allocation(parsed(text)).plan("packed"))

    check("graph text", count, case)


@counts
def test_a_changed_plan_is_refused_or_run(count):
    """By its text, its structure, and its structure under a checksum that fits."""
    texts = plan_texts()

    def case(random):
        text = random.choice(texts)
        if random.randrange(8) == 0:
            run_a_step(checked_plan(mutated_text(text, random)))
            return
        content = json.loads(text)
        part = random.choice([content, content, "graph", "buffers", "placements", "workspaces"])
        mutate(content if part is content else content[part], random)
        run_a_step(checked_plan(sealed(content) if random.randrange(8) else json.dumps(content)))

    check("plan", count, case)


@counts
def test_a_changed_checkpoint_is_refused_or_loaded(count, tmp_path):
    program, path = g.Program(planned()), tmp_path / "states.safetensors"
    program.save(path, notes={"epoch": "3"})
    content = path.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:length])

    def changed_header(random):
        told = json.loads(json.dumps(header))
        mutate(told, random)
        text = json.dumps(told).encode()
        return len(text).to_bytes(8, "little") + text + content[length:]

    def case(random):
        by_byte = random.randrange(2)
        # Half of the random bytes fall into the header, which is a small part of the file.
        whole = mutated_bytes(content[: length + 64], random) + content[length + 64 :]
        path.write_bytes(whole if by_byte else changed_header(random))
        read_notes(path)
        program.load(path)

    check("checkpoint", count, case)


BUFFERS = """id,lower,upper,size,offset
b1,0,3,4,
b2,3,9,4,
b3,0,9,4,12
b4,9,21,4,
b5,0,21,4,
"six, and more",4,8,300,
"""


@counts
def test_a_changed_table_of_buffers_is_refused_or_packed(count, tmp_path):
    path, out = tmp_path / "in.csv", tmp_path / "out.csv"

    def case(random):
        text = BUFFERS
        for _ in range(random.choice([1, 1, 2])):
            text = mutated_text(text, random)
        path.write_bytes(
            text.encode() if random.randrange(4) else mutated_bytes(text.encode(), random)
        )
        table = read_buffers(str(path))
        packing = pack(
            table.lower, table.upper, table.size, alignment=random.choice([1, 64]),
            pinned=table.pinned, effort=0,
        )  # fmt: skip
        write_offsets(str(out), table, packing.offsets)

    check("buffers", count, case)


PROBLEM = {
    "nodes": [
        {"id": i, "cost": 1 + i % 3, "bytes": 100 + 10 * i, "inputs": [i - 1] * (i > 0)}
        for i in range(6)
    ]
    + [
        {"id": 6 + i, "cost": 2.5, "bytes": 60, "inputs": [5 - i, 5 + i], "workspace": 7,
         "pinned": i == 0}
        for i in range(6)
    ],
    "outputs": [11],
    "fixed_bytes": 50,
    "budget": 700,
}  # fmt: skip


@counts
def test_a_changed_recomputation_problem_is_refused_or_solved(count, tmp_path):
    path = tmp_path / "problem.json"

    def case(random):
        text = json.dumps(PROBLEM)
        if random.randrange(3) == 0:
            path.write_text(mutated_text(text, random))
        else:
            content = json.loads(text)
            mutate(content, random)
            path.write_text(json.dumps(content))
        solve(read_problem(str(path)), seconds=0.0)

    check("problem", count, case)
