"""Calls of cuDNN for attention, and the workspace that they need."""

from __future__ import annotations

from collections.abc import Iterator

from graphc.codegen.cudnn_request import (
    AttentionRequest,
    LibraryCall,
    Tensor,
    is_readable,
    tensor_of,
)
from graphc.codegen.text.operands import VECTOR_BYTES, Place, Places, in_one_piece
from graphc.devices.device import HOPPER, NO_PAIRS, Device
from graphc.ir.graph import Node, Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import align, bfloat16, float32

WIDTH_MULTIPLE = 8
"""Rows of cuDNN's attention have a multiple of this many elements, that is, whole 16-byte packs."""

ATTENTION = ("attention", "attention_gradient")

LEAST_WORKSPACE = 64 * 2**10
"""Minimum bytes of workspace, for the internal buffers of attention engines."""

ROWS_OF_A_TILE, COLUMNS_OF_A_TILE = 64, 128
"""Multiples to which cuDNN rounds up the numbers of rows and columns in workspaces of attention."""


def attention_calls(node: Node, places: Places) -> Iterator[LibraryCall]:
    """Yield a request for 16-bit operands with contiguous rows.

    Yields nothing for other operands, with a mask, whose completely hidden rows have NaN gradients
    in cuDNN, or if the causal mask is aligned to the first row and the numbers of rows and keys
    differ. Yields no gradient that cuDNN may compute as NaN (see `_may_be_nan`).
    """
    is_forward = node.op.name == "attention"
    *names, _ = node.op.inputs
    q, k = (node.inputs[names.index(name)] for name in "qk")
    aligned = not node.attributes.from_first or q.shape[2] == k.shape[2]
    if len(node.inputs) > len(names) or not aligned:
        return
    if not is_forward and _may_be_nan(q.shape[2], k.shape[2], node.attributes.causal):
        return
    roles = (*names, *node.op.outputs)
    values = dict(zip(roles, (*node.inputs, *node.outputs), strict=True))
    maps = {role: value for role, value in values.items() if role != "stats"}
    if not all(is_16_bit(v) and _has_packed_rows(v, places[v]) for v in maps.values()):
        return
    if not all(is_readable(value, places[value]) for value in values.values()):
        return
    tensors = {role: tensor_of(value, places[value]) for role, value in values.items()}
    stats = tensors["stats"]
    stats = Tensor((*stats.shape, 1), (*stats.strides, 1), stats.dtype)
    request = AttentionRequest(
        "forward" if is_forward else "backward",
        tensors["q"], tensors["k"], tensors["v"], tensors["y"], stats,
        node.attributes.scale,
        node.attributes.causal,
        () if is_forward else tuple(tensors[role] for role in ("dy", "dq", "dk", "dv")),
    )  # fmt: skip
    yield LibraryCall(request, values)


def _may_be_nan(rows: int, columns: int, causal: bool) -> bool:
    """Return true if cuDNN's gradient of attention may be NaN for finite operands.

    On Hopper, gradients have been NaN if the log-sum-exp of a row is below about -88, so that
    exp(-log-sum-exp) exceeds float32, in two cases:

    - half of the last tile of columns is padding that no causal mask hides (pytorch issue 196678
      and cudnn-frontend pull request 628);
    - there is one row (cudnn-frontend issue 1072, cuDNN 9.26).
    """
    is_half_a_tile = columns % COLUMNS_OF_A_TILE == COLUMNS_OF_A_TILE // 2
    return rows == 1 or (is_half_a_tile and not causal)


LINEAR_SINCE = 92_500
"""The first version of cuDNN whose deterministic gradient of attention needs a workspace linear in
the number of rows on Hopper. Earlier versions, and all versions on other architectures, keep 16-bit
scores of all pairs of positions (cudnn-frontend 1.32, `scaled_dot_product_flash_attention.h`).
"""

MOST_PAIR_BYTES = 512 * 2**20
"""The largest workspace that a plan reserves for the scores of all pairs."""


def attention_workspace_bytes(node: Node, device: Device) -> int:
    """Return the workspace bytes that a node's attention needs in cuDNN; 0 for other nodes.

    It holds two float32 numbers per row. The gradient also needs a float32 sum for every element of
    dq. If heads of queries share keys, the gradients of keys and values are reserved for every
    head, too. Except on Hopper since `LINEAR_SINCE`, it needs the scores of all pairs. The larger
    of both sizes is reserved, but at most `MOST_PAIR_BYTES` for the scores.
    """
    if node.op.name not in ATTENTION:
        return 0
    places = {value: in_one_piece(value.type) for value in (*node.inputs, *node.outputs)}
    scratch_bytes = 0
    version, is_hopper = device.cudnn_version, device.architecture // 10 == HOPPER // 10
    is_linear = version == NO_PAIRS or (is_hopper and not 0 < version < LINEAR_SINCE)
    for call in attention_calls(node, places):
        batch, heads, rows, width = call.request.tensors["q"].shape
        maps, tiles = batch * heads, align(rows, ROWS_OF_A_TILE)
        sums = 2 * maps * tiles * float32.itemsize
        if node.op.name != "attention":
            linear = maps * tiles * width * float32.itemsize
            k, v = (call.request.tensors[role].shape for role in "kv")
            columns = align(k[2], COLUMNS_OF_A_TILE)
            pairs = maps * tiles * columns * bfloat16.itemsize
            keeps_pairs = not is_linear and pairs <= MOST_PAIR_BYTES
            sums += max(linear, pairs) if keeps_pairs else linear
            if heads != k[1]:
                sums += maps * columns * (k[3] + v[3]) * float32.itemsize
        scratch_bytes = LEAST_WORKSPACE + sums
    return scratch_bytes


def _has_packed_rows(value: Value, place: Place) -> bool:
    size = value.type.dtype.itemsize
    *outer, inner = place.strides
    return (
        value.shape[-1] % WIDTH_MULTIPLE == 0
        and inner == size
        and all(stride % VECTOR_BYTES == 0 for stride in outer)
    )
