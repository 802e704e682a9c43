"""What errors say of names that nobody knows."""

import pytest

from graphc.errors import OptionError, choose, did_you_mean


def test_did_you_mean_asks_for_the_nearest_of_the_choices():
    choices = ("none", "sharing", "packed", "inplace")
    assert did_you_mean("pakced", choices) == "did you mean packed?"
    assert did_you_mean("PACKED", choices) == "did you mean packed?"
    assert did_you_mean("weigth", ["layer", "weight", "weights"]) == (
        "did you mean weight or weights?"
    )
    assert did_you_mean("SHARING", ["Sharing"], before="; ") == "; did you mean Sharing?"


@pytest.mark.parametrize("given", ["zzzz", "", "x" * 100_000, 7, None])
def test_did_you_mean_says_nothing_where_nothing_is_near(given):
    assert did_you_mean(given, ("packed", "sharing"), before="; ") == ""
    assert did_you_mean(given, ()) == ""


def test_a_wrong_choice_lists_all_and_asks_for_the_nearest():
    with pytest.raises(OptionError) as caught:
        choose("allocate", "pack", ("none", "packed"))
    assert caught.value.message == (
        "unknown allocate 'pack'; choose one of: none, packed; did you mean packed?"
    )
    with pytest.raises(OptionError) as caught:
        choose("allocate", "zzzz", ("none", "packed"))
    assert caught.value.message == "unknown allocate 'zzzz'; choose one of: none, packed"
