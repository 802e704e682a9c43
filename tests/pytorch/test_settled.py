"""Settings that planning changes before it traces a module."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402

X = torch.randn(4, 8)


class Config:
    def __init__(self, **values):
        vars(self).update(values)


class TinyForSequenceClassification(nn.Linear):
    """Has a config and a head as those of transformers."""

    def __init__(self, num_labels, **config):
        super().__init__(8, num_labels)
        self.config = Config(num_labels=num_labels, **config)

    def forward(self, x, labels=None):
        found = super().forward(x)
        if self.config.problem_type is None:
            self.config.problem_type = "set by the module"
        return found * 2 if self.config.use_cache else found


def settled(labels, num_labels=3, use_cache=True, problem_type=None, wrapped=False):
    head = TinyForSequenceClassification(num_labels, use_cache=use_cache, problem_type=problem_type)
    module = nn.Sequential(head) if wrapped else head
    args = (X,) if labels is None or wrapped else (X, labels)
    step = graphc.torch.plan(module, args, "knee")
    step(*args)
    step(*args)
    found = {each["name"]: each["value"] for each in step.report.json["settled"]}
    return found, len(step.plans), head.config


CLASSES, MANY = torch.zeros(4, dtype=torch.long), torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("labels", "num_labels", "kind"),
    [
        (CLASSES, 3, "single_label_classification"),
        (MANY, 3, "multi_label_classification"),
        (MANY, 1, "regression"),
    ],
)
def test_the_problem_type_is_that_of_the_labels(labels, num_labels, kind):
    found, plans, config = settled(labels, num_labels)
    assert found == {"config.use_cache": False, "config.problem_type": kind}
    assert plans == 1
    assert (config.use_cache, config.problem_type) == (False, kind)


def test_settings_of_the_user_stay():
    found, _, config = settled(CLASSES, use_cache=False, problem_type="regression")
    assert found == {}
    assert config.problem_type == "regression"


def test_a_submodule_is_named():
    found, _, _ = settled(None, problem_type="regression", wrapped=True)
    assert found == {"0.config.use_cache": False}


@pytest.mark.filterwarnings("ignore:this step has been planned again")
def test_without_labels_the_type_stays_open():
    found, _, _ = settled(None)
    assert found == {"config.use_cache": False}
