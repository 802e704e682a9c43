"""Options of predictions, and one-line errors for impossible ones."""

import pytest

from graphc.errors import OptionError
from graphc.torch.fit.options import OPTIMIZERS, FitOptions, Lora, parse_lora


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r=16,targets=q_proj,v_proj", Lora(16, ("q_proj", "v_proj"))),
        ("targets=q_proj,r=4", Lora(4, ("q_proj",))),
        ("targets=q_proj,q_proj,r=4", Lora(4, ("q_proj",))),
        (" r = 8 ", Lora(8)),
        ("r=8,targets=layers.0.q_proj", Lora(8, ("layers.0.q_proj",))),
    ],
)
def test_adapters_are_parsed(text, expected):
    assert parse_lora(text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"--lora: '' has no name; write --lora r=16,targets=q_proj,v_proj"),
        ("16", r"--lora: '16' has no name"),
        ("r=", r"--lora r must be an integer from 1 to 65536, got ''"),
        ("r=0", r"--lora r must be an integer from 1 to 65536, got 0"),
        ("r=-4", r"--lora r must be an integer from 1 to 65536, got '-4'"),
        ("r=1.5", r"got '1\.5'"),
        ("r=4,r=8", r"--lora: r is given twice"),
        ("rank=4", r"--lora has no option 'rank'; it takes r and targets$"),
        ("r=4,target=q", r"no option 'target'.*did you mean targets\?"),
        ("targets=q_proj", r"--lora 'targets=q_proj' has no rank"),
        ("r=4,targets=", r"has an empty target"),
        ("r=4,targets=a,,b", r"has an empty target"),
        ("r=4,q_proj", r"'q_proj' has no name"),
    ],
)
def test_impossible_adapters_are_rejected_in_one_line(text, message):
    with pytest.raises(OptionError, match=message) as told:
        parse_lora(text)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adma"}, r"unknown optimizer 'adma'.*did you mean adam"),
        ({"shard": "zero", "ranks": 2}, r"unknown shard 'zero'.*did you mean zero3"),
        ({"shard": "fsdp", "ranks": 2}, r"choose one of: ddp, zero1, zero2, zero3"),
        ({"attention": "flash2"}, r"did you mean flash\?"),
        ({"checkpoint": "block"}, r"did you mean blocks\?"),
        ({"base": "4bits", "lora": Lora(4)}, r"did you mean 4bit\?"),
        ({"base": "4bit"}, r"--base 4bit leaves nothing to train.*add --lora r=16"),
        ({"ranks": 4}, r"--ranks 4 has no effect without --shard"),
        ({"shard": "ddp"}, r"--shard ddp needs --ranks of at least 2"),
        ({"ranks": "many", "shard": "ddp"}, r"ranks must be an integer .*, got 'many'"),
        ({"accumulate": 0}, r"accumulate must be an integer of at least 1, got 0"),
    ],
)
def test_impossible_options_are_rejected_in_one_line(settings, message):
    with pytest.raises(OptionError, match=message) as told:
        FitOptions(**settings)
    assert "\n" not in str(told.value)


def test_options_have_one_list_of_optimizers():
    pytest.importorskip("torch", reason="torch is not installed")
    from graphc.torch.fit.optimizers import STATES

    assert tuple(STATES) == OPTIMIZERS
