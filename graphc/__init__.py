"""graphc: a computation-graph compiler that plans every byte of a training step before it runs."""

from graphc import optim
from graphc.compiler import FrontierPoint, compile, frontier, plan
from graphc.errors import BudgetError, GraphcError
from graphc.ir.builder import input, keep, mirror, parameter, scope, segment
from graphc.ir.costs import MeasuredCosts, read_costs
from graphc.ir.graph import Graph, Initial, Node, Value
from graphc.ir.op import Op
from graphc.ir.ops.activation import gelu, leaky_relu, relu, relu6, sigmoid, silu, tanh
from graphc.ir.ops.attention import attention, multi_head_attention
from graphc.ir.ops.batch_norm import batch_norm
from graphc.ir.ops.choice import (
    cast,
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    maximum,
    where,
)
from graphc.ir.ops.concat import concat, split
from graphc.ir.ops.conv import conv2d, conv_transpose2d
from graphc.ir.ops.elementwise import add, div, exp, log, mul, neg, power, sqrt, sub
from graphc.ir.ops.embedding import embedding, gather, one_hot
from graphc.ir.ops.loss import mse, softmax_cross_entropy
from graphc.ir.ops.matmul import affine, linear, matmul
from graphc.ir.ops.norm import group_norm, layer_norm, rms_norm
from graphc.ir.ops.pool import average_pool2d, global_average_pool2d, max_pool2d
from graphc.ir.ops.random import dropout
from graphc.ir.ops.recurrent import (
    CellParameters,
    gru_cell,
    gru_parameters,
    lstm_cell,
    lstm_parameters,
)
from graphc.ir.ops.reduce import max, mean, sum
from graphc.ir.ops.resample import adaptive_average_pool2d, pad, upsample2d
from graphc.ir.ops.shape import broadcast_to, full, reshape, transpose
from graphc.ir.ops.shape import slice_ as slice
from graphc.ir.ops.softmax import causal_softmax, log_softmax, softmax
from graphc.ir.parse import parse_graph
from graphc.ir.plan import MemoryPlan
from graphc.ir.text import format_graph
from graphc.passes.gradient import gradient
from graphc.plan_file import load_plan, save_plan
from graphc.runtime.bind import bind
from graphc.runtime.checkpoint import read_notes
from graphc.runtime.profile import profile
from graphc.runtime.program import Program

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "CellParameters",
    "FrontierPoint",
    "Graph",
    "GraphcError",
    "Initial",
    "MeasuredCosts",
    "MemoryPlan",
    "Node",
    "Op",
    "Program",
    "Value",
    "adaptive_average_pool2d",
    "add",
    "affine",
    "attention",
    "average_pool2d",
    "batch_norm",
    "bind",
    "broadcast_to",
    "cast",
    "causal_softmax",
    "compile",
    "concat",
    "conv2d",
    "conv_transpose2d",
    "div",
    "dropout",
    "embedding",
    "equal",
    "exp",
    "format_graph",
    "frontier",
    "full",
    "gather",
    "gelu",
    "global_average_pool2d",
    "gradient",
    "greater",
    "greater_equal",
    "group_norm",
    "gru_cell",
    "gru_parameters",
    "input",
    "keep",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "load_plan",
    "log",
    "log_softmax",
    "lstm_cell",
    "lstm_parameters",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "mirror",
    "mse",
    "mul",
    "multi_head_attention",
    "neg",
    "one_hot",
    "optim",
    "pad",
    "parameter",
    "parse_graph",
    "plan",
    "power",
    "profile",
    "read_costs",
    "read_notes",
    "relu",
    "relu6",
    "reshape",
    "rms_norm",
    "save_plan",
    "scope",
    "segment",
    "sigmoid",
    "silu",
    "slice",
    "softmax",
    "softmax_cross_entropy",
    "split",
    "sqrt",
    "sub",
    "sum",
    "tanh",
    "transpose",
    "upsample2d",
    "where",
]
