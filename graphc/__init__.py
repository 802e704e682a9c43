"""graphc: a computation-graph compiler that plans every byte of a training step before it runs."""

from typing import TYPE_CHECKING

from graphc import onnx, optim, torch
from graphc.codegen import native as _native  # noqa: F401 - makes native kernels known
from graphc.codegen import target as _gpus  # noqa: F401 - makes GPUs known as targets
from graphc.compiler.batches import LargestBatch, largest_batch
from graphc.compiler.bucketing import Buckets, buckets
from graphc.compiler.compile import FrontierPoint, compile, frontier, plan
from graphc.compiler.families import family, plan_family
from graphc.errors import BudgetError, GraphcError, ProgramBusy, TornError
from graphc.errors import no_attribute as _no_attribute
from graphc.gradient_check import GradientCheck, GradientRow, check_gradient
from graphc.ir.builder import constant, input, keep, mirror, parameter, scope, segment
from graphc.ir.graph import Graph, Initial, Node, Value
from graphc.ir.methods import public_functions as _public_functions
from graphc.ir.op import Op
from graphc.ir.parse import parse_graph
from graphc.ir.text import format_graph
from graphc.keywords import check_keywords_of as _check_keywords_of
from graphc.ops.activation import (
    celu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    mish,
    prelu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    softsign,
    tanh,
    thresholded_relu,
)
from graphc.ops.attention import attention, multi_head_attention
from graphc.ops.batch_norm import batch_norm
from graphc.ops.choice import (
    bitcast,
    cast,
    clip,
    equal,
    greater,
    greater_equal,
    isinf,
    isnan,
    less,
    less_equal,
    maximum,
    minimum,
    where,
)
from graphc.ops.collective import all_gather, all_reduce, broadcast, reduce_scatter
from graphc.ops.concat import concat, split, stack
from graphc.ops.conv_layers import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from graphc.ops.cross_entropy import nll_loss, softmax_cross_entropy
from graphc.ops.deform_conv import deform_conv2d
from graphc.ops.einsum import einsum
from graphc.ops.elements import gather_elements, scatter_elements, take
from graphc.ops.elementwise import add, div, exp, log, mul, neg, sqrt, sub
from graphc.ops.embedding import embedding, gather, one_hot
from graphc.ops.fold import col2im, depth_to_space, im2col, space_to_depth
from graphc.ops.gamma import digamma, lgamma
from graphc.ops.indexing import reverse
from graphc.ops.indexing import slice_ as slice
from graphc.ops.instance_norm import instance_norm
from graphc.ops.integer import (
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    floor_divide,
    fmod,
    left_shift,
    remainder,
    right_shift,
    trunc_divide,
)
from graphc.ops.interpolate import grid_sample
from graphc.ops.linear_cross_entropy import linear_cross_entropy
from graphc.ops.loss import (
    binary_cross_entropy_with_logits,
    hinge,
    huber,
    kl_divergence,
    l1,
    mse,
    smooth_l1,
)
from graphc.ops.matmul import affine, linear, matmul
from graphc.ops.norm import group_norm, layer_norm
from graphc.ops.order import argmax, argmin, sort, top_k
from graphc.ops.padding import pad
from graphc.ops.pool_axes import (
    average_pool1d,
    average_pool2d,
    average_pool3d,
    global_average_pool2d,
    lp_pool,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from graphc.ops.power import power, reciprocal
from graphc.ops.random import dropout, normal, uniform
from graphc.ops.recurrent import (
    CellParameters,
    gru_cell,
    gru_layer,
    gru_parameters,
    lstm_cell,
    lstm_layer,
    lstm_parameters,
)
from graphc.ops.reduce import all, any, max, mean, min, sum
from graphc.ops.resample import adaptive_average_pool2d, upsample2d
from graphc.ops.resize import resize
from graphc.ops.rms_norm import rms_norm
from graphc.ops.roi_align import roi_align
from graphc.ops.rotary import rope
from graphc.ops.rounding import abs, ceil, floor, round, sign, trunc
from graphc.ops.scan import cumsum
from graphc.ops.scatter import gather_nd, scatter_nd
from graphc.ops.shape import broadcast_to, flatten, full, reshape, transpose
from graphc.ops.softmax import causal_softmax, log_softmax, masked_softmax, softmax
from graphc.ops.statistics import logsumexp, norm, normalize, prod, std, var
from graphc.ops.stop_gradient import stop_gradient
from graphc.ops.trigonometry import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    erf,
    sin,
    sinh,
    tan,
)
from graphc.ops.unpool import max_pool_with_indices, max_unpool
from graphc.passes.gradient import gradient
from graphc.plans.costs import MeasuredCosts, read_costs
from graphc.plans.family import FamilyPlan
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.plan_file import load_plan, save_plan
from graphc.runtime.backend import Report
from graphc.runtime.bind import bind
from graphc.runtime.checkpoint import read_notes
from graphc.runtime.family import Family
from graphc.runtime.profile import profile
from graphc.runtime.program import Program

__version__ = "0.1.0"

__all__ = [
    "Buckets",
    "BudgetError",
    "CellParameters",
    "Family",
    "FamilyPlan",
    "FrontierPoint",
    "GradientCheck",
    "GradientRow",
    "Graph",
    "GraphcError",
    "Initial",
    "LargestBatch",
    "MeasuredCosts",
    "MemoryPlan",
    "Node",
    "Op",
    "Program",
    "ProgramBusy",
    "Report",
    "TornError",
    "Value",
    "abs",
    "acos",
    "acosh",
    "adaptive_average_pool2d",
    "add",
    "affine",
    "all",
    "all_gather",
    "all_reduce",
    "any",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "attention",
    "average_pool1d",
    "average_pool2d",
    "average_pool3d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "bind",
    "bitcast",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "broadcast",
    "broadcast_to",
    "buckets",
    "cast",
    "causal_softmax",
    "ceil",
    "celu",
    "check_gradient",
    "clip",
    "col2im",
    "compile",
    "concat",
    "constant",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cosh",
    "cumsum",
    "deform_conv2d",
    "depth_to_space",
    "digamma",
    "div",
    "dropout",
    "einsum",
    "elu",
    "embedding",
    "equal",
    "erf",
    "exp",
    "family",
    "flatten",
    "floor",
    "floor_divide",
    "fmod",
    "format_graph",
    "frontier",
    "full",
    "gather",
    "gather_elements",
    "gather_nd",
    "gelu",
    "global_average_pool2d",
    "gradient",
    "greater",
    "greater_equal",
    "grid_sample",
    "group_norm",
    "gru_cell",
    "gru_layer",
    "gru_parameters",
    "hard_sigmoid",
    "hard_swish",
    "hinge",
    "huber",
    "im2col",
    "input",
    "instance_norm",
    "isinf",
    "isnan",
    "keep",
    "kl_divergence",
    "l1",
    "largest_batch",
    "layer_norm",
    "leaky_relu",
    "left_shift",
    "less",
    "less_equal",
    "lgamma",
    "linear",
    "linear_cross_entropy",
    "load_plan",
    "log",
    "log_softmax",
    "logsumexp",
    "lp_pool",
    "lstm_cell",
    "lstm_layer",
    "lstm_parameters",
    "masked_softmax",
    "matmul",
    "max",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool_with_indices",
    "max_unpool",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mirror",
    "mish",
    "mse",
    "mul",
    "multi_head_attention",
    "neg",
    "nll_loss",
    "norm",
    "normal",
    "normalize",
    "one_hot",
    "onnx",
    "optim",
    "pad",
    "parameter",
    "parse_graph",
    "plan",
    "plan_family",
    "power",
    "prelu",
    "prod",
    "profile",
    "read_costs",
    "read_notes",
    "reciprocal",
    "reduce_scatter",
    "relu",
    "relu6",
    "remainder",
    "reshape",
    "resize",
    "reverse",
    "right_shift",
    "rms_norm",
    "roi_align",
    "rope",
    "round",
    "save_plan",
    "scatter_elements",
    "scatter_nd",
    "scope",
    "segment",
    "selu",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "slice",
    "smooth_l1",
    "softmax",
    "softmax_cross_entropy",
    "softplus",
    "softsign",
    "sort",
    "space_to_depth",
    "split",
    "sqrt",
    "stack",
    "std",
    "stop_gradient",
    "sub",
    "sum",
    "take",
    "tan",
    "tanh",
    "thresholded_relu",
    "top_k",
    "torch",
    "transpose",
    "trunc",
    "trunc_divide",
    "uniform",
    "upsample2d",
    "var",
    "where",
]

_check_keywords_of(__all__, globals())
_public_functions({name: globals()[name] for name in __all__})

if not TYPE_CHECKING:  # type checkers know the names, and would accept any other name

    def __getattr__(name: str) -> object:
        raise _no_attribute(__name__, name, __all__)
