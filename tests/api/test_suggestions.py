"""A name that is misspelt is answered with the nearest that there is."""

import re

import numpy as np
import pytest

import graphc as g
from graphc.errors import FeedError, OptionError


def error_of(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("rellu", "relu"), ("Linear", "linear"), ("softmax_entropy", "softmax_cross_entropy")],
)
def test_an_attribute_of_graphc_that_is_misspelt(name, meant):
    told = error_of(lambda: getattr(g, name), AttributeError)
    assert told.startswith(f"module 'graphc' has no attribute {name!r}; did you mean {meant}")
    assert not hasattr(g, name)


def test_an_attribute_that_is_like_none():
    told = error_of(lambda: g.quux17, AttributeError)
    assert told == "module 'graphc' has no attribute 'quux17'"


def test_an_optimizer_that_is_misspelt():
    assert "did you mean Adam or AdamW?" in error_of(lambda: g.optim.AdamX, AttributeError)
    assert "did you mean SGD?" in error_of(lambda: g.optim.sgd, AttributeError)
    assert "did you mean Schedule?" in error_of(lambda: g.optim.schedule, AttributeError)


def test_unknown_optimizer_settings_are_refused():
    assert "Adam has no option 'weight_decai'; did you mean weight_decay?" in error_of(
        lambda: g.optim.Adam(1e-3, weight_decai=0.1), OptionError
    )
    assert "SGD has no option 'lr'; its options are learning_rate" in error_of(
        lambda: g.optim.SGD(lr=0.1), OptionError
    )
    assert g.optim.AdamW(2e-3, weight_decay=0.5) == g.optim.AdamW(
        learning_rate=2e-3, weight_decay=0.5
    )


@pytest.fixture(scope="module")
def program():
    x = g.input("images", (2, 3))
    with g.scope("layer0"):
        y = g.linear(x, 4)
    return g.compile(g.mse(y, g.input("targets", (2, 4))), optimizer=g.optim.Adam())


def test_a_parameter_that_is_misspelt(program):
    for read in (
        lambda: program.parameters["layer0/wieght"],
        lambda: program.parameters.__setitem__("layer0/wieght", np.zeros((4, 3), np.float32)),
    ):
        assert error_of(read, OptionError).endswith(
            "there is no 'layer0/wieght'; did you mean layer0/weight?"
        )
    assert "there is no 'z'; some of the states are layer0/weight, layer0/bias" in error_of(
        lambda: program.parameters["z"], OptionError
    )
    assert re.search(r"did you mean .*adam/m/layer0/weight", error_of(
        lambda: program.states["adam/m/layer0/weigth"], OptionError))  # fmt: skip


def test_the_place_of_a_call_through_the_standard_library_is_the_users(program):
    told = error_of(lambda: program.states.update({"layer0/biass": 0}), OptionError)
    assert told.startswith(f"{__file__}:")
    assert told.endswith("there is no 'layer0/biass'; did you mean layer0/bias?")


def test_a_feed_that_is_misspelt(program):
    images, targets = np.zeros((2, 3), np.float32), np.zeros((2, 4), np.float32)
    told = error_of(lambda: program.step(image=images, targets=targets), FeedError)
    assert told == (
        "the program has no input 'image'; its inputs are 'images', 'targets', 'learning_rate'; "
        "did you mean images?"
    )
    told = error_of(lambda: program.step(images=images, targets=targets, target=0), FeedError)
    assert told.endswith("'learning_rate'")  # what is fed already is not what was meant


def test_an_option_and_a_choice_that_are_misspelt(program):
    x = g.input("x", (2,))
    assert error_of(lambda: g.compile(x, recompte="cheap"), OptionError).endswith(
        "compile has no option 'recompte'; did you mean recompute?"
    )
    assert error_of(lambda: g.compile(x, recompute="sublinaer"), OptionError).endswith(
        "did you mean sublinear?"
    )


def test_names_that_people_bring_along_have_a_hint():
    x = g.input("x", (2, 3, 8, 8))
    loss = g.mean(g.linear(g.reshape(x, (2, -1)), 3))
    calls = {
        "did you mean cuda": lambda: g.plan(loss, device="gpu"),
        "did you mean fp16": lambda: g.plan(loss, precision="float16"),
        "did you mean bf16": lambda: g.plan(loss, precision="bfloat16"),
        r"\(kernel - 1\) // 2 keeps the extents": lambda: g.conv2d(x, 4, 3, padding="same"),
    }
    for message, call in calls.items():
        with pytest.raises(OptionError, match=message):
            call()


def test_an_unknown_output_of_a_step_lists_those_that_there_are():
    x = g.input("x", (3,))
    found = g.compile(g.mean(x), outputs={"scores": x + 1}).step(x=np.ones(3, np.float32))
    assert sorted(found) == ["loss", "scores"]
    with pytest.raises(KeyError, match="no output 'score'; did you mean scores"):
        found["score"]
    assert found.get("score") is None
