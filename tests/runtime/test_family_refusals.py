"""Arguments and feeds that families of several sizes refuse."""

import numpy as np
import pytest
from runtime.sized_networks import BATCH, CLASSES, PAD, gpt2

import graphc as g
from graphc.errors import FeedError, OptionError, PlanError


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (None, "must be a function that builds the network"),
        (lambda rows: None, r"cannot be called with the size {'seq_len': 8}"),
        (lambda seq_len, rows: None, "missing a required argument: 'rows'"),
    ],
)
def test_functions_that_do_not_accept_a_size_are_refused(build, message):
    for made_by in g.family, g.plan_family:
        with pytest.raises(OptionError, match=message):
            made_by(build, {"seq_len": (8, 16)})


def test_an_unknown_option_is_refused():
    with pytest.raises(OptionError, match="family has no option 'optimiser'; did you mean optim"):
        g.family(gpt2, {"seq_len": (8,)}, optimiser="sgd")


def test_rows_of_different_lengths_are_refused():
    family = g.family(gpt2, [{"seq_len": 8}], pad=PAD["gpt2"])
    with pytest.raises(FeedError, match="'tokens' must be an array, got a list of rows with diff"):
        family.step(tokens=[[1, 2], [3]], labels=np.zeros((BATCH, 8), np.int32))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "at least one size"),
        ({}, "at least one size"),
        ({"seq_len": ()}, "at least one size"),
        ({"seq_len": 5}, "must list the values"),
        ([{"seq_len": 8}, {"seq_len": 8}], "twice"),
        (5, "list of arguments"),
        ([3], "list of arguments"),
    ],
)
def test_invalid_sizes_are_refused(sizes, message):
    with pytest.raises(OptionError, match=message):
        g.family(gpt2, sizes, optimizer="sgd")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlap_copies": True}, "does not support overlap_copies.*omit it"),
        ({"dump": "folder"}, "does not support dump"),
        ({"ranks": 2}, "one process"),
        ({"loss": 3}, "`build` returns the loss"),
    ],
)
def test_options_that_families_do_not_support_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        g.family(gpt2, {"seq_len": (8, 16)}, optimizer="sgd", **options)


@pytest.mark.parametrize(
    ("pad", "message"),
    [
        ({"token": 0}, "no input 'token'.*did you mean tokens"),
        ({"tokens": CLASSES}, r"pad\['tokens'\] is 11.*must be in \[0, 11\).*ignore_index"),
        ({"labels": -1}, r"pad\['labels'\] is -1.*or be -100"),
        ({"tokens": 0.5}, "0.5"),
        ([1], "pad must map names"),
    ],
)
def test_invalid_numbers_for_padding_are_refused(pad, message):
    with pytest.raises(FeedError, match=message):
        g.family(gpt2, {"seq_len": (8,)}, pad=pad, optimizer="sgd")


def test_states_that_depend_on_the_size_are_refused():
    def build(width):
        return g.mean(g.linear(g.input("x", (2, width)), 3, name="layer"))

    with pytest.raises(
        PlanError, match=r"'layer/weight' has the type.*must not depend on the size"
    ):
        g.family(build, {"width": (2, 4)}, optimizer="sgd")
    with pytest.raises(OptionError, match="must return a value"):
        g.family(lambda width: None, {"width": (2, 4)}, optimizer="sgd")


def test_unknown_sizes_and_unnamed_feeds_are_refused():
    family = g.family(gpt2, {"seq_len": (8, 16)}, pad=PAD["gpt2"], optimizer="sgd")
    with pytest.raises(OptionError, match=r"no size {'seq_len': 9}; the sizes are"):
        family.program(seq_len=9)
    with pytest.raises(FeedError, match="given by name"):
        family.step(5)
    with pytest.raises(FeedError, match="no input 'token'"):
        family.step(token=np.zeros((BATCH, 8), np.int32))
    with pytest.raises(FeedError, match="'labels' is missing"):
        family.step(tokens=np.zeros((BATCH, 8), np.int32))
