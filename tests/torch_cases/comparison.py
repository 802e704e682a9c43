"""A module in torch and, read by graphc, in graphc: outputs and gradients in float64."""

import collections
import copy
import itertools

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


class Joined(torch.nn.Module):
    """Several modules in one, each with arguments of its own."""

    def __init__(self, cases):
        super().__init__()
        self.parts = torch.nn.ModuleList(module for module, _ in cases)
        self.counts = [len(args) for _, args in cases]

    def forward(self, *args):
        rest = iter(args)
        return [
            part(*itertools.islice(rest, count))
            for part, count in zip(self.parts, self.counts, strict=True)
        ]


def each_agrees(cases):
    """Check several modules, each with its arguments, as parts of one network.

    Exporting a module takes torch a third of a second, and many small ones hardly more than one.
    """
    of_input = [
        number
        for number, (_, args) in enumerate(cases)
        for leaf in pytree.tree_leaves(args)
        if isinstance(leaf, torch.Tensor)
    ]
    agrees(
        Joined(cases),
        *(arg for _, args in cases for arg in args),
        part_of=lambda name: of_input[name] if isinstance(name, int) else int(name.split(".")[1]),
    )


def agrees(module, *args, trained=True, part_of=lambda name: 0):
    """Outputs and gradients of all parameters and inputs are torch's; gives the network.

    `part_of` maps the name of a parameter, or the number of an input, to a part of the module:
    small gradients are compared on the scale of the largest one of their part.
    """
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
    _compared(network, given, outputs, gradients, moved, states, inputs, part_of)
    return network, program, module


def _compared(network, given, outputs, gradients, moved, states, inputs, part_of):
    for i, wanted in enumerate(arrays_of(outputs)):
        close(given[f"y{i}"], wanted, 0.0, f"output {i}")
    largest = collections.defaultdict(float)
    for name, d in (*gradients.items(), *enumerate(moved)):
        if d is not None and d.numel():
            largest[part_of(name)] = max(largest[part_of(name)], float(d.abs().max()))
    for name, wanted in gradients.items():
        if wanted is not None and wanted.numel():
            called = network.names[name]
            assert called in states, name
            close(given[f"d/{called}"], wanted.numpy(force=True), largest[part_of(name)], name)
    for number, (source, wanted) in enumerate(zip(inputs, moved, strict=True)):
        if wanted is not None and f"d/{source.name}" in given:
            scale = largest[part_of(number)]
            close(given[f"d/{source.name}"], wanted.numpy(force=True), scale, source.name)
