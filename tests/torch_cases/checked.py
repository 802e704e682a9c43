"""A step of a module under a plan against one under ``aot_eager``: bits, random state, peak."""

import copy

import torch
from torch.utils._pytree import tree_leaves, tree_map

import graphc
from graphc.torch.measure import measured_peak

SLACK = 2**20
"""Bytes that a measured peak may be above the planned one, or 1 % of it."""


def floats(found):
    """The tensors of what a call returned that have gradients."""
    return [t for t in tree_leaves(found) if isinstance(t, torch.Tensor) and t.requires_grad]


def backward_of_sum(found):
    """Backward from the sum of all that can be differentiated."""
    outputs = floats(found)
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])


def fresh(args):
    """Arguments of the same contents, which require grad where those did."""

    def copied(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(copied, args)


def state_of(module, args, found):
    """All that a step leaves: results, gradients, buffers, changed inputs, the random state."""
    state = {f"result {i}": t for i, t in enumerate(tree_leaves(found)) if torch.is_tensor(t)}
    inputs = [t for t in tree_leaves(args) if torch.is_tensor(t)]
    state |= {f"input {i}": t for i, t in enumerate(inputs)}
    state |= {f"gradient of input {i}": t.grad for i, t in enumerate(inputs) if t.is_leaf}
    state |= {f"parameter {name}": p for name, p in module.named_parameters()}
    state |= {f"gradient of {name}": p.grad for name, p in module.named_parameters()}
    state |= {f"buffer {name}": b for name, b in module.named_buffers()}
    copies = {key: None if t is None else t.detach().clone() for key, t in state.items()}
    return copies | {"random state": torch.get_rng_state()}


def step_of(call, module, args, kwargs, backward):
    """One step from seed 0, and what it leaves."""
    torch.manual_seed(0)
    found = call(*args, **kwargs)
    backward(found)
    return state_of(module, (args, kwargs), found)


def different(found, expected):
    """The names of what is not equal, to the bit."""
    assert found.keys() == expected.keys()
    return [
        key
        for key, value in expected.items()
        if (value is None) != (found[key] is None)
        or (value is not None and not _same(found[key], value))
    ]


def _same(one, other):
    as_bytes = [each.contiguous().view(-1).view(torch.uint8) for each in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*as_bytes)


def held_tensors(module, args):
    """What is there before a step."""
    given = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
    return [*module.parameters(), *module.buffers(), *given]


def peak_of(step, module, args, kwargs=None, backward=backward_of_sum, more_held=()):
    """The measured peak of a step that has run before."""
    kwargs = kwargs or {}

    def run():
        backward(step(*args, **kwargs))

    return measured_peak(run, [*held_tensors(module, (args, kwargs)), *more_held])


def check(make, args, *, kwargs=None, cut=0.5, backward=backward_of_sum, loss_fn=None):
    """Plan at a budget between the plain peak and the least; compare bits, then peaks.

    `cut` is how far toward the least. Gives the planned step.
    """
    kwargs = kwargs or {}
    torch.manual_seed(1)
    module = make()
    other = copy.deepcopy(module)
    whole = other if loss_fn is None else (lambda *a: loss_fn(other(*a[:-1]), a[-1]))
    reference = torch.compile(whole, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch._dynamo.config.patch(allow_rnn=True):
        expected = step_of(reference, other, *fresh((args, kwargs)), backward)
    report = graphc.torch.plan(
        module, args, max_extra_time=0.0, loss_fn=loss_fn, kwargs=kwargs
    ).report
    budget = int(report.plain_bytes - cut * (report.plain_bytes - report.least_bytes))
    step = graphc.torch.plan(module, args, budget, loss_fn=loss_fn, kwargs=kwargs)
    assert step.report.peak_bytes <= budget
    own_args, own_kwargs = fresh((args, kwargs))
    found = step_of(step, module, own_args, own_kwargs, backward)
    assert different(found, expected) == []
    for parameter in module.parameters():
        parameter.grad = None
    for each in tree_leaves((own_args, own_kwargs)):
        if torch.is_tensor(each):
            each.grad = None
    measured = peak_of(step, module, own_args, own_kwargs, backward)
    planned = step.report.peak_bytes
    assert measured <= planned + max(planned // 100, SLACK), (measured, planned)
    step.measured = measured
    return step
