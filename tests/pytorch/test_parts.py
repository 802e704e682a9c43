"""What training in torch does beside layers: bits of ``aot_eager``, and the planned peak."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402
from torch_cases import parts  # noqa: E402
from torch_cases.steps import SLACK, Run, check, different  # noqa: E402

import graphc  # noqa: E402


def x(*shape, **options):
    return torch.randn(*(shape or (256, 64)), **options)


def tokens():
    return torch.randint(100, (256,))


CASES = {
    "autocast": lambda: check(parts.Autocast, (x(),)),
    "frozen parameters": lambda: check(parts.Frozen, (x(),)),
    "tied weights": lambda: check(parts.Tied, (tokens(), tokens())),
    "several outputs": lambda: check(parts.Outputs, (x(),)),
    "nested arguments": lambda: check(
        parts.Nested, ({"x": x(), "more": [x(), 2]},), kwargs={"scale": x(64)}
    ),
    "checkpoint": lambda: check(lambda: parts.Checkpointed(False), (x(),)),
    "reentrant checkpoint": lambda: check(
        lambda: parts.Checkpointed(True), (x(requires_grad=True),)
    ),
    "autograd.Function": lambda: check(parts.OwnFunction, (x(),)),
    "parameters in one storage": lambda: check(parts.OneStorage, (x(),)),
    "average in a buffer": lambda: check(parts.Averaged, (x(),)),
    "input that requires grad": lambda: check(parts.layers, (x(requires_grad=True),)),
    "input that is changed": lambda: check(parts.ChangedInput, (x(),)),
    "loss function": lambda: check(parts.layers, (x(), x()), loss_fn=nn.MSELoss()),
    "norms": lambda: check(lambda: parts.convolutions(nn.ReLU), (x(8, 8, 16, 16),)),
    "evaluated norms": lambda: check(
        lambda: parts.convolutions(nn.Dropout).eval(), (x(8, 8, 16, 16),)
    ),
    "dropout": lambda: check(lambda: parts.convolutions(nn.Dropout), (x(8, 8, 16, 16),), cut=1.0),
    "a few bytes": lambda: check(lambda: nn.Linear(2, 2), (x(3, 2),)),
}


# Of Dynamo itself, where it traces one: before 2.15.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_plan_keeps_bits_and_peak(name):
    step = CASES[name]()
    report = step.report
    # a module of a few bytes is no tighter than what its figures round to
    assert step.measured <= report.peak_bytes + min(SLACK, report.peak_bytes // 10)
    assert report.peak_bytes <= report.plain_bytes


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_what_the_backward_pass_of_a_function_computes_is_not_saved():
    """Six dequantized weights of 1 MiB would be."""
    step = check(parts.Dequantized, (x(8, 512),))
    weight = 512 * 512 * 4
    report = graphc.torch.plan(step.module, (x(8, 512),), max_extra_time=0.0).report
    resident = sum(e.nbytes for e in (*step.parameters(), *step.buffers()))
    assert report.plain_bytes < resident + 4 * weight


@pytest.mark.slow
def test_autocast_around_the_step():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = check(parts.layers, (x(),), backward=lambda y: y.float().sum().backward())
    assert step.report.peak_bytes < step.report.plain_bytes


@pytest.mark.slow
@pytest.mark.parametrize("cut", [0.3, 1.0])
def test_slices_in_place_keep_to_the_budget(cut):
    """Of some MiB, so that a part of a per cent decides, and not the slack."""
    step = check(lambda: parts.Slices(128), (x(4096, 128),), cut=cut)
    assert 8 * SLACK < step.measured <= step.report.peak_bytes * 1.001


@pytest.mark.slow
@pytest.mark.parametrize("cells", [nn.LSTM, nn.GRU])
def test_recurrent_layers(cells):
    """Of an input that requires grad torch has cell by cell; Dynamo takes these only when told."""

    def make():
        module = parts.Recurrent(cells, num_layers=2, dropout=0.1)
        module(x(4, 4, 32))
        return module

    check(make, (x(4, 4, 32, requires_grad=True),), cut=1.0)
    assert not torch._dynamo.config.allow_rnn


def test_a_recurrent_layer_of_plain_input():
    """Under any other backend torch fails here, so the bits are those of eager."""
    module = parts.Recurrent(nn.LSTM, num_layers=2)
    module(x(8, 4, 32))
    other, given = copy.deepcopy(module), (x(8, 4, 32),)
    step = graphc.torch.plan(module, given, max_extra_time=0.0)
    run = Run(module, step, given)
    assert different(run.bits(), Run(other, other, given).bits()) == []
    assert run.peak() <= step.report.peak_bytes * 1.01
