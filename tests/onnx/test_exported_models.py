"""onnx's models that PyTorch exported, of single operators and layers, give their results."""

from functools import cache
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

import graphc
from graphc.errors import GraphcError

COUNTS = {"pytorch-operator": 35, "pytorch-converted": 82}


def arrays(folder, kind):
    """The inputs or outputs of a run."""
    found = []
    while (path := folder / f"{kind}_{len(found)}.pb").exists():
        found.append(numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())))
    return found


@cache
def cases(kind):
    return load_model_tests(kind=kind)


def failures(found):
    wrong = {}
    for case in found:
        folder = Path(case.model_dir)
        prepared = graphc.onnx.Backend.prepare(onnx.load(folder / "model.onnx"))
        for run in sorted(folder.glob("test_data_set_*")):
            try:
                outputs = prepared.run(arrays(run, "input"))
                Runner.assert_similar_outputs(arrays(run, "output"), outputs, case.rtol, case.atol)
            except (GraphcError, AssertionError) as error:
                wrong[case.name] = " ".join(str(error).split())[:200]
    return wrong


@pytest.mark.parametrize("kind", COUNTS)
def test_exported_models_give_their_results(kind):
    assert len(cases(kind)) == COUNTS[kind]
    assert failures(cases(kind)) == {}
