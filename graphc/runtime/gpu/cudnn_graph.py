"""Requests to cuDNN as graphs of its frontend package: tensors, one operation, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphc.codegen.cudnn_request import AttentionRequest, ConvolutionRequest, Request
from graphc.ir.types import DType, bfloat16, float16, float32, float64

DATA_TYPES = {float32: "FLOAT", float64: "DOUBLE", float16: "HALF", bfloat16: "BFLOAT16"}
"""The names of dtypes in cudnn.data_type."""


def numbers_of(request: Request) -> dict[str, int]:
    """Return the frontend's number of each tensor, by role."""
    return {role: number for number, role in enumerate(request.tensors, 1)}


def graph_of(library: Any, handle: Any, request: Request, deterministic: bool = True) -> Any:
    """Build the graph of a request; the frontend's module is `library`."""
    dtype = request.x.dtype if isinstance(request, ConvolutionRequest) else request.q.dtype
    wide = _data_type(library, float64 if dtype == float64 else float32)
    graph = library.pygraph(
        handle=handle,
        io_data_type=_data_type(library, dtype),
        intermediate_data_type=wide,
        compute_data_type=wide,
    )
    numbers = numbers_of(request)
    read = {
        role: graph.tensor(
            dim=list(tensor.shape),
            stride=list(tensor.strides),
            data_type=_data_type(library, tensor.dtype),
            uid=numbers[role],
        )
        for role, tensor in request.tensors.items()
        if role not in request.written
    }
    if isinstance(request, ConvolutionRequest):
        results = _convolution(graph, request, read)
    else:
        results = _attention(library, graph, request, read, deterministic)
    for role, result in zip(request.written, results, strict=True):
        tensor = request.tensors[role]
        result.set_output(True).set_uid(numbers[role]).set_dim(list(tensor.shape))
        result.set_stride(list(tensor.strides))
        result.set_data_type(_data_type(library, tensor.dtype))
    return graph


def _convolution(graph: Any, request: ConvolutionRequest, read: Mapping[str, Any]) -> list[Any]:
    """Add a convolution. cuDNN derives the number of groups from the channels of x and w."""
    geometry = {
        "pre_padding": list(request.padding[:2]),
        "post_padding": list(request.padding[-2:]),
        "stride": list(request.stride),
        "dilation": list(request.dilation),
    }
    if request.kind == "fprop":
        return [graph.conv_fprop(image=read["x"], weight=read["w"], **geometry)]
    if request.kind == "dgrad":
        return [graph.conv_dgrad(loss=read["y"], filter=read["w"], **geometry)]
    return [graph.conv_wgrad(image=read["x"], loss=read["y"], **geometry)]


def _attention(
    library: Any,
    graph: Any,
    request: AttentionRequest,
    read: Mapping[str, Any],
    deterministic: bool,
) -> list[Any]:
    """Add attention, whose causal mask ends at the last row and the last column."""
    options: dict[str, Any] = {"attn_scale": request.scale}
    if request.causal:
        ends = library.diagonal_alignment
        square = request.q.shape[2] == request.k.shape[2]
        options["diagonal_alignment"] = ends.TOP_LEFT if square else ends.BOTTOM_RIGHT
        options["diagonal_band_right_bound"] = 0
    operands = {role: read[role] for role in ("q", "k", "v")}
    if request.kind == "forward":
        return list(graph.sdpa(**operands, generate_stats=True, **options))
    return list(
        graph.sdpa_backward(
            **operands, o=read["y"], dO=read["dy"], stats=read["stats"],
            use_deterministic_algorithm=deterministic, **options,
        )
    )  # fmt: skip


def _data_type(library: Any, dtype: DType) -> Any:
    return getattr(library.data_type, DATA_TYPES[dtype])
