"""ONNX files with random changes are refused by an error of graphc, or are read and run."""

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf import json_format
from onnx.backend.test.loader import load_model_tests
from onnx_cases.node_tests import node_cases
from robustness.mutations import mutate, mutated_bytes
from robustness.trials import check

import graphc
from graphc.errors import OnnxError

SMALL_BYTES = 2**20
"""The largest arena in which a step is run."""

MOST_BYTES = 20_000
"""Files of onnx's cases that are larger are mostly numbers."""


@cache
def operators():
    """Models of single operators and of functions' bodies, as the bytes of files."""
    texts = [case.model.SerializeToString() for case in node_cases().values()]
    return [text for text in texts if len(text) < MOST_BYTES]


@cache
def exported():
    """Models of operators and layers that PyTorch exported; onnx reads these in no time."""
    cases = load_model_tests(kind="pytorch-operator") + load_model_tests(kind="pytorch-converted")
    texts = [(Path(case.model_dir) / "model.onnx").read_bytes() for case in cases]
    return [text for text in texts if len(text) < MOST_BYTES]


def changed(text, random):
    """A file with a change of its bytes, or of what they say."""
    if random.random() < 0.5:
        return mutated_bytes(text, random)
    content = json_format.MessageToDict(onnx.ModelProto.FromString(text))
    for _ in range(random.choice((1, 1, 2, 3))):
        mutate(content, random)
    try:
        return json_format.ParseDict(content, onnx.ModelProto()).SerializeToString()
    except (json_format.ParseError, AttributeError, ValueError, TypeError):
        raise OnnxError("what was changed cannot be written as a file") from None


@pytest.mark.parametrize(
    ("files", "count"), [(exported, 60), pytest.param(operators, 5_000, marks=pytest.mark.slow)]
)
def test_a_changed_file_is_refused_or_run(files, count, tmp_path):
    path = tmp_path / "changed.onnx"

    def case(random):
        path.write_bytes(changed(random.choice(files()), random))
        network = graphc.onnx.load(path)
        outputs = {f"output{i}": value for i, value in enumerate(network.outputs.values())}
        if not outputs:
            return
        plan = graphc.plan(outputs=outputs)
        if plan.arena_bytes > SMALL_BYTES:
            return
        program = graphc.bind(plan)
        network.initialize(program)
        program.step({x.name: np.zeros(x.shape, x.type.dtype.numpy) for x in plan.graph.inputs})

    with np.errstate(all="ignore"):
        check("ONNX file", count, case)
