"""Small calls of torch's operators by family, as modules with their arguments."""

import copy
import zlib

import torch
from torch import nn
from torch_cases import arithmetic, empty, layers, ordering, rearranging, sizes

FAMILIES = {
    "elementwise": arithmetic.ELEMENTWISE,
    "activation": arithmetic.ACTIVATIONS,
    "shape": rearranging.SHAPES,
    "reduce": rearranging.REDUCTIONS,
    "indexing": rearranging.INDEXING,
    "order": ordering.ORDER,
    "bags": ordering.BAGS,
    "writes": ordering.WRITES,
    "sizes": sizes.SIZES,
    "products": layers.PRODUCTS,
    "convolution": layers.CONVOLUTIONS,
    "pooling": layers.POOLS,
    "uneven pooling": ordering.UNEVEN,
    "norm": layers.NORMS,
    "attention": layers.ATTENTION,
    "recurrent": layers.CELLS,
    "loss": layers.LOSSES,
    "empty": empty.EMPTY,
}


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def case(family, name):
    """The module and arguments of a case; parameters are the same in each run."""
    function, args = FAMILIES[family][name]
    if not isinstance(function, nn.Module):
        return Called(function), args
    module = copy.deepcopy(function)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.uniform_(-0.6, 0.6, generator=generator)
    return module, args
