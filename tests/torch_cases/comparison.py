"""A module in torch and, read by graphc, in graphc: outputs and gradients in float64."""

import copy

import numpy as np
import torch
from torch.utils import _pytree as pytree

import graphc as g

RNG = np.random.default_rng(0)


def arrays_of(tensors):
    return [tensor.numpy(force=True) for tensor in tensors]


def doubled(module, args):
    """The module and its arguments with floats of 64 bits."""
    args = pytree.tree_map_only(
        torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, args
    )
    return copy.deepcopy(module).double(), args


def close(found, wanted, largest, name):
    """To 1e-9 of the tensor's largest element, or of all gradients' where that is but rounding."""
    assert np.shape(found) == np.shape(wanted), name
    sizes = np.abs(wanted)[np.isfinite(wanted)]
    scale = max(sizes.max(initial=0.0), 1e-3 * largest)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9 * scale, err_msg=name)


def by_torch(module, args, shares):
    """Outputs, and gradients of their weighted sum by the names of parameters and inputs."""
    fed = pytree.tree_map_only(
        torch.Tensor, lambda x: x.clone().requires_grad_(x.is_floating_point()), args
    )
    outputs = [x for x in pytree.tree_leaves(module(*fed)) if isinstance(x, torch.Tensor)]
    total = sum((x * torch.tensor(shares(x.shape))).sum() for x in outputs if x.requires_grad)
    if isinstance(total, torch.Tensor):
        total.backward()
    gradients = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    inputs = [x for x in pytree.tree_leaves(fed) if isinstance(x, torch.Tensor)]
    return outputs, gradients, [x.grad for x in inputs]


def weights_by(seed):
    """Weights of outputs: the same for the same shape, whoever asks."""
    return lambda shape: np.random.default_rng((seed, *shape)).standard_normal(tuple(shape))


def agrees(module, *args, trained=True):
    """Outputs and gradients of all parameters and inputs are torch's; gives the network."""
    module, args = doubled(module, args)
    network = g.torch.load(copy.deepcopy(module), args)
    shares = weights_by(7)
    outputs, gradients, moved = by_torch(module, args, shares)
    inputs = list(network.inputs.values())
    fed = [x for x in pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    feeds = {x.name: array for x, array in zip(inputs, arrays_of(fed), strict=True)}
    parts = [
        g.sum(y * g.constant(shares(y.shape)))
        for y, wanted in zip(network.outputs.values(), outputs, strict=True)
        if wanted.requires_grad
    ]
    named = {f"y{i}": y for i, y in enumerate(network.outputs.values())}
    if parts and trained:
        loss = parts[0]
        for part in parts[1:]:
            loss = loss + part
        states = {s.name: s for s in g.plan(loss, training=True).graph.states if s.trainable}
        floats = [x for x in inputs if x.type.dtype.kind == "float"]
        sources = [*states.values(), *floats]
        found = g.gradient(loss, sources)
        named |= {f"d/{s.name}": d for s, d in zip(sources, found, strict=True)}
        program = g.compile(loss, outputs=named, training=True, poison=True)
    else:
        states, program = {}, g.compile(outputs=named, training=trained)
    network.initialize(program)
    given = program.step({x.name: feeds[x.name] for x in program.plan.graph.inputs})
    _compared(network, given, outputs, gradients, moved, states, inputs)
    return network, program, module


def _compared(network, given, outputs, gradients, moved, states, inputs):
    for i, wanted in enumerate(arrays_of(outputs)):
        close(given[f"y{i}"], wanted, 0.0, f"output {i}")
    known = [d for d in (*gradients.values(), *moved) if d is not None]
    largest = max((float(d.abs().max()) for d in known if d.numel()), default=0.0)
    for name, wanted in gradients.items():
        if wanted is not None and wanted.numel():
            called = network.names[name]
            assert called in states, name
            close(given[f"d/{called}"], wanted.numpy(force=True), largest, name)
    for source, wanted in zip(inputs, moved, strict=True):
        if wanted is not None and f"d/{source.name}" in given:
            close(given[f"d/{source.name}"], wanted.numpy(force=True), largest, source.name)
