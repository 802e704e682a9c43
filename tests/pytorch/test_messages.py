"""Calls that only print are left out of a plan, and print while it is made."""

import logging
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402

logger = logging.getLogger("graphc_tests")
X = torch.randn(4, 8)


class Talking(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        logger.warning("has %d rows", len(x))
        logger.warning(f"has {x}")
        if logger.isEnabledFor(logging.DEBUG):
            raise AssertionError("the level is another one")
        print("rows", x.shape[0], end=".")
        warnings.warn("old", FutureWarning, stacklevel=2)
        return self.inner(x).sum()


def test_messages_appear_once_and_nothing_else_changes(caplog, capsys):
    with pytest.warns(FutureWarning, match="old"):
        step = graphc.torch.plan(Talking(), (X,), "knee")
    assert [each.getMessage() for each in caplog.records if each.name == logger.name] == [
        "has 4 rows"
    ]
    assert capsys.readouterr().out == "rows 4."
    loss = step(X)
    assert torch.equal(loss, step.module.inner(X).sum())
    assert len(step.plans) == 1
    assert capsys.readouterr().out == ""


def test_other_users_of_dynamo_see_no_difference():
    def loud(x):
        logger.warning("hello")
        return x + 1

    with pytest.raises(torch._dynamo.exc.Unsupported, match="logging"):
        torch.compile(loud, backend="eager", fullgraph=True)(X)
