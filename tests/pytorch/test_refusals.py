"""What cannot be planned is refused before anything runs: its name, the rule and the cure."""

import importlib

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op  # noqa: E402
from torch.distributed._functional_collectives import all_reduce  # noqa: E402
from torch.testing._internal.two_tensor import TwoTensor  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402
from graphc.torch.budget.trace import names  # noqa: E402

runs = []
"""Ops that have run with their effects."""


@torch.library.custom_op("graphc_tests::effect", mutates_args=())
def effect(x: torch.Tensor) -> torch.Tensor:
    runs.append("effect")
    return x.clone()


effect.register_fake(torch.empty_like)
effect.register_autograd(lambda ctx, gradient: gradient)
_register_effectful_op(torch.ops.graphc_tests.effect.default, _EffectType.ORDERED)


class Steered(nn.PReLU):
    """Steered by an array of NumPy, whose value no function of torch gives."""

    def forward(self, y):
        return y * 2 if y.detach().numpy().sum() > 0 else y


class Broken(nn.PReLU):
    """A module with a parameter, so it cannot run in eager mode inside the plan."""

    def forward(self, y):
        torch._dynamo.graph_break()
        return y


def conditional(y):
    return torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))


def reduced(y):
    return all_reduce(y, "sum", dist.group.WORLD)


class Masking(nn.PReLU):
    """A module in which a gradient has a size that depends on data."""

    def forward(self, y):
        y = y * 2
        y[y[:, 0] > 0] = self.weight.expand(8)
        return y


def raising(y):
    raise ValueError("no such thing")


# Dynamo of torch 2.9 does not tell where a module raises.
AT_RAISING = r"at test_refusals.py:\d+ in raising" if torch.__version__ >= (2, 11) else ""

AT = r", at test_refusals.py:\d+ in \S+"

REFUSED = {
    raising: rf"raises .*{AT_RAISING}.*: ValueError\('no such thing'\)",
    Steered(): r"depends on data, at test_refusals.py:\d+ in forward of .* your .*torch.where",
    Broken(): r"one graph, at test_refusals.py:\d+ in forward.*; move that line out of the",
    conditional: "^cond.* runs a nested graph.*rewrite that part without it",
    lambda y: y[y > 0]: r"index.* size that is unknown before the step.*torch.where instead of",
    Masking(): rf"index has a size that is unknown.*{AT} of submodule between, a .*torch.where",
    lambda y: (
        torch.nonzero(y).float() + y.sum()
    ): rf"nonzero.* size that is unknown before.*{AT}.*do not depend on data",
    effect: "graphc_tests.effect.* registered with side effects.*outside the module",
    reduced: "all_reduce.* communicates with other processes.*DistributedDataParallel",
}


class Around(nn.Module):
    def __init__(self, between):
        super().__init__()
        self.layer, self.between = nn.Linear(8, 8), between

    def forward(self, x):
        return self.between(self.layer(x)).sum()


@pytest.fixture(autouse=True)
def alone():
    """Nothing runs."""
    runs.clear()
    yield
    assert not runs


@pytest.fixture
def group(tmp_path):
    """A group of this process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "between", REFUSED, ids=lambda each: getattr(each, "__name__", type(each).__name__)
)
def test_it_is_refused_by_name(between, group):
    module = Around(between)
    with pytest.raises(TorchError, match=REFUSED[between]) as told:
        graphc.torch.plan(module, (torch.randn(4, 8),))
    assert "\n" not in str(told.value)
    assert module.layer.weight.grad is None


def test_parameters_and_arguments_of_several_tensors():
    module, x = Around(torch.tanh), torch.randn(4, 8)
    with pytest.raises(TorchError, match=r"^args\[0\] is a TwoTensor.*pass plain tensors"):
        graphc.torch.plan(module, (TwoTensor(x, x),))
    weight = module.layer.weight.detach()
    module.layer.weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    with pytest.raises(TorchError, match=r"parameter layer\.weight is a TwoTensor"):
        graphc.torch.plan(module, (x,))


class Ignoring(Around):
    """Has what its forward pass does not read."""

    def forward(self, x, more=None):
        return super().forward(x)


def test_tensors_that_are_not_strided_are_refused_though_nothing_reads_them():
    module, x, more = Ignoring(torch.tanh), torch.randn(4, 8), torch.eye(3).to_sparse()
    with pytest.raises(TorchError, match=r"^kwargs\['more'\] is torch\.sparse_coo.* strided"):
        graphc.torch.plan(module, (x,), kwargs={"more": more})
    module.register_buffer("more", more)
    with pytest.raises(TorchError, match=r"^buffer more is torch\.sparse_coo.* remove it"):
        graphc.torch.plan(module, (x,))


def test_nothing_to_differentiate():
    module = Around(torch.tanh).requires_grad_(False)
    with pytest.raises(
        TorchError, match="no parameter or argument of the module requires gradients"
    ):
        graphc.torch.plan(module, (torch.randn(4, 8),))


def test_an_error_of_a_step_that_runs_stays_torch_s():
    module = Around(lambda y: nn.functional.embedding(torch.tensor([99]), y))
    with pytest.raises(IndexError, match="out of range"):
        graphc.torch.plan(module, (torch.randn(4, 8),), max_extra_time=0.0)(torch.randn(4, 8))


class Inside(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), inner])

    def forward(self, x):
        return self.blocks[1](self.blocks[0](x))


def test_an_error_names_the_submodule_and_has_torch_s_text_as_a_note():
    with pytest.raises(TorchError) as told:
        graphc.torch.plan(Inside(Around(Broken())), (torch.randn(4, 8),))
    assert "in forward of submodule blocks.1.between, a line of your program: " in str(told.value)
    (note,) = told.value.__notes__
    assert note.startswith("torch says: ")
    assert "Hint: " in note
    assert "Hint: " not in str(told.value)


def test_masks_of_speech_name_the_option_that_turns_them_off(tmp_path, monkeypatch):
    lines = (
        "import torch\nclass Masking(torch.nn.PReLU):\n    def _mask_hidden_states(self, y):\n"
        "        y = y * 1\n        y[y[:, 0] > 0] = self.weight.expand(8)\n        return y\n"
        "    forward = _mask_hidden_states\n"
    )
    (tmp_path / "graphc_tests_speech.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(names, "LIBRARIES", (tmp_path,))
    masking = importlib.import_module("graphc_tests_speech").Masking()
    match = (
        r"_speech.py:5 in _mask_hidden_states of .* between, .*, in the configuration apply_spec"
    )
    with pytest.raises(TorchError, match=match):
        graphc.torch.plan(Around(masking), (torch.randn(4, 8),))


def test_an_error_names_the_library_of_a_line(tmp_path, monkeypatch):
    lines = (
        "import torch\nclass Broken(torch.nn.PReLU):\n    def forward(self, y):\n"
        "        torch._dynamo.graph_break()\n        return y\n"
    )
    (tmp_path / "graphc_tests_library.py").write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(names, "LIBRARIES", (tmp_path,))
    broken = importlib.import_module("graphc_tests_library").Broken()
    match = (
        "_library.py:4 in forward of .* between, a line of the library graphc_tests_library: .*"
        "turn off the option of the library"
    )
    with pytest.raises(TorchError, match=match):
        graphc.torch.plan(Around(broken), (torch.randn(4, 8),))
