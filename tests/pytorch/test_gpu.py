"""What is decided for GPUs, as far as tensors without numbers show it."""

from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.peers

from torch import nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402

from graphc.errors import TorchError  # noqa: E402


def on(device):
    with FakeTensorMode():
        return torch.empty(3, device=device)


def test_random_numbers_come_from_the_generator_of_the_device_they_are_for(monkeypatch):
    """The state is on the CPU, and an op without tensors says where it draws."""
    from graphc.torch.budget.runner import drawing_on_its_device

    entered = []

    def enter(device):
        entered.append(str(device))
        return nullcontext()

    monkeypatch.setattr(torch.cuda, "device", enter)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    draw = drawing_on_its_device(lambda *args, **kwargs: (args, kwargs))
    state, x = torch.get_rng_state(), on("cuda:1")
    assert draw(state, torch.rand_like, x) == ((state, torch.rand_like, x), {})
    assert draw(torch.rand, device=torch.device("cuda:2"))[1] == {"device": torch.device("cuda:2")}
    assert entered == ["cuda:1", "cuda:2"]
    draw(state, torch.rand_like, torch.ones(3))
    assert len(entered) == 2


def test_a_graph_that_is_captured_takes_no_saved_state(monkeypatch):
    from graphc.torch.budget.runner import drawing_on_its_device

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(TorchError, match="CUDA graph cannot capture"):
        drawing_on_its_device(torch.rand_like)(on("cuda:0"))
    drawing_on_its_device(torch.rand_like)(torch.ones(3))


def test_a_backward_pass_that_is_watched_runs_in_the_thread_that_watches():
    """By itself, autograd has a thread for each GPU."""
    from graphc.torch.budget.make_step import to_plan

    step = to_plan(nn.ReLU())
    with step.watched(lambda *_: nullcontext()):
        assert not torch._C._is_multithreading_enabled()
    assert torch._C._is_multithreading_enabled()


def test_a_second_gpu_is_refused_by_the_names_of_what_is_there():
    from graphc.torch.budget.make_step import to_plan
    from graphc.torch.budget.refusals import refuse_tensors

    step = to_plan(nn.ReLU())
    refuse_tensors(step, ((on("cuda:1"), on("cuda:1"), torch.ones(3)), {}))
    with pytest.raises(TorchError, match=r"\[0\] on cuda:0 and .*'scale'.* on cuda:1"):
        refuse_tensors(step, ((on("cuda:0"),), {"scale": on("cuda:1")}))
