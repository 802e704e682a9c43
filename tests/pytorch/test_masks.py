"""Functions of transformers that are replaced while steps are traced, on a module in its place."""

import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphc.torch.budget.trace.of_transformers import (  # noqa: E402
    MASKS,
    WITH_DATA,
    WITHOUT_DATA,
    passes_positions,
    replaced,
)


@pytest.fixture
def masking(monkeypatch):
    module = types.ModuleType(MASKS)
    module.is_tracing = lambda tensor=None: True
    module.find_packed_sequence_indices = lambda position_ids: position_ids
    monkeypatch.setitem(sys.modules, MASKS, module)
    return module


def test_only_traces_get_other_results(masking):
    def decided(x):
        return x + masking.is_tracing(x), masking.find_packed_sequence_indices(x)

    x = torch.ones(2)
    compiled = torch.compile(decided, backend="eager", fullgraph=True)
    with replaced(WITHOUT_DATA):
        assert compiled(x)[1] is None
        assert decided(x)[1] is x
    torch.compiler.reset()
    with replaced(WITH_DATA):
        assert torch.equal(compiled(x)[0], x)
        assert torch.equal(decided(x)[0], x + 1)


def test_overlapping_contexts_restore_the_functions(masking):
    before = dict(vars(masking))
    first, second = replaced(WITH_DATA), replaced(WITHOUT_DATA)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # as of another thread
    assert masking.is_tracing is not before["is_tracing"]
    second.__exit__(None, None, None)
    assert dict(vars(masking)) == before


def test_an_error_restores_the_functions(masking):
    before = dict(vars(masking))
    with pytest.raises(ZeroDivisionError), replaced(WITHOUT_DATA):
        raise ZeroDivisionError
    assert dict(vars(masking)) == before


def test_functions_keep_their_identity_between_calls(masking):
    """Otherwise Dynamo would trace each step again."""
    found = []
    for _ in range(2):
        with replaced(WITH_DATA):
            found.append(masking.is_tracing)
    assert found[0] is found[1]


@pytest.mark.parametrize(
    ("args", "kwargs", "passes"),
    [
        ((), {"input_ids": 1}, False),
        ((), {"position_ids": None}, False),
        ((), {"position_ids": 1}, True),
        ((1, 2), {}, False),
        ((1, 2, 3), {}, True),
    ],
)
def test_positions_are_the_third_argument(args, kwargs, passes):
    assert passes_positions((args, kwargs)) is passes
