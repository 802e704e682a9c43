"""Tests measure ops into a cache of their own, start with nothing compiled, and skip old torch."""

import importlib.util
import os

import pytest

from graphc.torch.versions import is_before

OLDER = {
    ((2, 13), "compares data in quantile, so it cannot be exported"): [
        "test_singular.py::test_gradients_are_torchs[quantiles of ties]"
    ],
    ((2, 13), "has no derivative of aminmax"): [
        "test_operators.py::test_it_is_what_torch_computes[reduce-extremes"
    ],
    ((2, 13), "does not trace register_buffer"): ["test_verify.py::test_attributes_that_become"],
    ((2, 13), "has no guards on requires_grad of parameters"): [
        "test_replans.py::test_the_guard_and_its_values[<lambda>-tensor"
    ],
    ((2, 13), "prints nothing while it profiles"): ["test_quiet.py::test_messages_that_the_user"],
    ((2, 11), "needs a GPU for a fake tensor on one"): [
        "test_gradients.py::test_those_of_views_on_a_gpu",
    ],
    ((2, 11), "does not trace this call"): [
        "test_assumptions.py::test_numbers_of_tensors",
        "test_messages.py::test_messages_appear_once",
        "test_quiet.py::test_nothing_is_printed[logging]",
    ],
    ((2, 11), "makes a branch of an item"): ["test_interplay.py::test_an_item_that_is_only"],
    ((2, 11), "does not export a recurrent layer that is the whole module"): [
        "test_operators.py::test_it_is_what_torch_computes[recurrent-"
    ],
    ((2, 11), "gives gradients of 0 without memory"): [
        "test_operators.py::test_it_is_what_torch_computes[elementwise-sgn",
        "test_singular.py::test_gradients_are_torchs[angles]",
    ],
    ((2, 11), "does not name the autocast"): ["test_replans.py::test_the_autocast_around"],
    ((2, 11), "does not trace tensors without data"): [
        "test_budgets.py::test_without_a_goal_a_profile_has_a_memory",
        "test_fit.py::test_dropout_adds_no_more",
        "test_fit.py::test_the_row_of_torch_compile",
        "test_fit.py::test_a_plan",
        "test_fit.py::test_micro_batches",
        "test_interplay.py::test_control_flow_on_tensors_without_data",
        "test_interplay.py::test_autocast_of_another_device_is_refused_for_a_profile",
        "test_offload.py::test_it_is_never_slower_by_the_model",
        "test_sizes_ahead.py::test_sizes_are_planned_without_data",
        "test_without_data.py::test_nothing_runs",
        "test_without_data.py::test_a_budget",
        "test_without_data.py::test_costs_are",
        "test_without_data.py::test_fused_attention",
    ],
    ((2, 11), "allows no other thread in Dynamo's metrics"): [
        "test_step.py::test_a_step_may_be_called_while_another_thread"
    ],
}
"""Tests that cannot pass with torch below a release: (release, what torch does) to prefixes."""


def pytest_collection_modifyitems(items):
    """Skip tests of what an older torch lacks."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    skipped = {
        prefix: reason
        for (release, reason), prefixes in OLDER.items()
        for prefix in prefixes
        if is_before(torch.__version__, release)
    }
    for item in items:
        for prefix, reason in skipped.items():
            if f"tests/pytorch/{prefix}" in item.nodeid:
                item.add_marker(pytest.mark.skip(reason=f"this version of torch {reason}"))


@pytest.fixture(scope="session", autouse=True)
def cache_of_costs(tmp_path_factory):
    """What the user has measured stays as it is, and decides nothing here."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(autouse=True)
def compiled_anew():
    """Nothing that a test before has compiled, or drawn, counts here."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.compiler.reset()
        torch.manual_seed(0)
