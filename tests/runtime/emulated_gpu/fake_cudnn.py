"""What the tests need of NVIDIA's cudnn frontend, on the CPU, with the frontend's own signatures.

Tensors are read and written at raw addresses with the strides that a graph was given, in float64.
Engines differ in their notes, workspace and rounding, so that a wrong choice shows in the results.
"""

import ctypes
import enum
import os
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

__version__ = "1.32.0"


class cudnnGraphNotSupportedError(Exception):  # noqa: N801 - the frontend's name
    pass


data_type = enum.Enum("data_type", ["FLOAT", "DOUBLE", "HALF", "BFLOAT16", "NOT_SET"])
heur_mode = enum.Enum("heur_mode", ["A", "B", "FALLBACK", "OPENSOURCE"])
numerical_note = enum.Enum(
    "numerical_note",
    [
        "TENSOR_CORE",
        "DOWN_CONVERT_INPUTS",
        "REDUCED_PRECISION_REDUCTION",
        "FFT",
        "NONDETERMINISTIC",
        "WINOGRAD",
        "WINOGRAD_TILE_4x4",
        "WINOGRAD_TILE_6x6",
        "WINOGRAD_TILE_13x13",
    ],
)
knob_type = enum.Enum("knob_type", ["NOT_SET", "SWIZZLE", "TILE_SIZE", "EDGE", "SPLIT_K_BUF"])
diagonal_alignment = enum.Enum("diagonal_alignment", ["TOP_LEFT", "BOTTOM_RIGHT"])

NUMPY = {
    data_type.FLOAT: np.float32,
    data_type.DOUBLE: np.float64,
    data_type.HALF: np.float16,
    data_type.BFLOAT16: ml_dtypes.bfloat16,
}


@dataclass(frozen=True)
class Engine:
    number: int
    workspace: int = 0
    knobs: dict = field(default_factory=dict)
    notes: tuple = ()
    narrow: bool = False
    """Whether operands are rounded to bfloat16."""


NOTES = numerical_note
SMALL, LARGE = 1024, 1 << 20
ENGINES = [
    Engine(20_400),
    Engine(1, notes=(NOTES.TENSOR_CORE, NOTES.DOWN_CONVERT_INPUTS), narrow=True),
    Engine(2, notes=(NOTES.NONDETERMINISTIC,), narrow=True),
    Engine(3, notes=(NOTES.REDUCED_PRECISION_REDUCTION,), narrow=True),
    Engine(4, notes=(NOTES.TENSOR_CORE,)),
    Engine(7, LARGE, {knob_type.TILE_SIZE: 3, knob_type.EDGE: 1}),
    Engine(9, SMALL, {knob_type.TILE_SIZE: 2}),
    Engine(11, SMALL),
]
VERSION = [91_100]
MADE = []
"""Graphs, in order."""
HANDLES = set()


def backend_version():
    return VERSION[0]


class Handle:
    def __init__(self):
        self.stream = None


def create_handle():
    handle = Handle()
    HANDLES.add(handle)
    return handle


def destroy_handle(handle):
    HANDLES.remove(handle)


def set_stream(handle, stream):
    assert handle in HANDLES
    handle.stream = stream


class Tensor:
    def __init__(self, dim=None, stride=None, type=None, uid=None):
        self.dim, self.stride, self.type, self.uid = dim, stride, type, uid
        self.is_output = False

    def set_output(self, value):
        self.is_output = value
        return self

    def set_uid(self, uid):
        self.uid = uid
        return self

    def set_dim(self, dim):
        self.dim = dim
        return self

    def set_stride(self, stride):
        self.stride = stride
        return self

    def set_data_type(self, type):
        self.type = type
        return self

    def at(self, address):
        """The tensor in memory."""
        dtype = np.dtype(NUMPY[self.type])
        reach = sum((n - 1) * s for n, s in zip(self.dim, self.stride, strict=True)) + 1
        raw = (ctypes.c_uint8 * (reach * dtype.itemsize)).from_address(address)
        flat = np.frombuffer(raw, dtype)
        strides = [stride * dtype.itemsize for stride in self.stride]
        return np.lib.stride_tricks.as_strided(flat, self.dim, strides)


class pygraph:  # noqa: N801 - the frontend's name
    def __init__(
        self, name="test_graph", io_data_type=None, intermediate_data_type=None,
        compute_data_type=None, handle=None,
    ):  # fmt: skip
        assert handle in HANDLES
        self.compute, self.plans, self.refused = compute_data_type, [], []
        self.limit, self.selected, self.sums = None, None, 0
        self.tensors, self.state = [], "open"
        MADE.append(self)

    def tensor(self, dim, stride=None, data_type=None, *, uid=None):
        self.tensors.append(Tensor(list(dim), list(stride), data_type, uid))
        return self.tensors[-1]

    # --- operations ---

    def conv_fprop(self, image, weight, *, pre_padding, post_padding, stride, dilation):
        self._convolution("fprop", (image, weight), pre_padding, post_padding, stride, dilation)
        return self.results[0]

    def conv_dgrad(self, loss, filter, *, pre_padding, post_padding, stride, dilation):
        self._convolution("dgrad", (loss, filter), pre_padding, post_padding, stride, dilation)
        return self.results[0]

    def conv_wgrad(self, image, loss, *, pre_padding, post_padding, stride, dilation):
        self._convolution("wgrad", (image, loss), pre_padding, post_padding, stride, dilation)
        return self.results[0]

    def _convolution(self, kind, operands, pre, post, stride, dilation):
        self.operands, self.results = operands, [Tensor()]
        self.compute_it = lambda *arrays: _convolve(
            kind, arrays, self.results[0].dim, pre, post, stride, dilation
        )

    def sdpa(
        self, q, k, v, *, attn_scale, generate_stats, diagonal_alignment=None,
        diagonal_band_right_bound=None,
    ):  # fmt: skip
        assert generate_stats is True
        mask = _mask(q, k, diagonal_alignment, diagonal_band_right_bound)
        self.operands, self.results = (q, k, v), [Tensor(), Tensor()]
        self.compute_it = lambda *arrays: _attend(*arrays, attn_scale, mask)
        return self.results

    def sdpa_backward(
        self, q, k, v, o, dO, stats, *, attn_scale, use_deterministic_algorithm,
        diagonal_alignment=None, diagonal_band_right_bound=None,
    ):  # fmt: skip
        mask = _mask(q, k, diagonal_alignment, diagonal_band_right_bound)
        self.operands, self.results = (q, k, v, o, dO, stats), [Tensor() for _ in range(3)]
        self.sums = _bytes_of_sums(q.dim, k.dim) if use_deterministic_algorithm else 0
        self.compute_it = lambda *arrays: _attend_back(*arrays, attn_scale, mask)
        return self.results

    # --- planning ---

    def validate(self):
        used = (*self.operands, *self.results)
        assert all(r.is_output for r in self.results)
        assert len({t.uid for t in used}) == len(used)
        assert all(len(t.dim) == len(t.stride) == 4 for t in used)
        wide = [t.type for t in used if t.type == data_type.DOUBLE]
        assert self.compute == (data_type.DOUBLE if wide else data_type.FLOAT)
        if any(not all(t.stride) for t in used):
            raise RuntimeError("CUDNN_STATUS_BAD_PARAM: a stride is 0")
        self.state = "valid"

    def build_operation_graph(self):
        assert self.state == "valid"
        self.state = "built"

    def create_execution_plans(self, heuristics):
        assert self.state == "built"
        assert heuristics == [heur_mode.A, heur_mode.FALLBACK]
        self.plans = [(e.number, dict(e.knobs)) for e in ENGINES]
        if not self.plans:
            raise cudnnGraphNotSupportedError("No valid engine configs")

    def create_execution_plan(self, engine_id, knobs=None):
        assert self.state == "built"
        self._engine((engine_id, knobs))
        self.plans.append((engine_id, dict(knobs)))

    def deselect_numeric_notes(self, notes):
        self.refused += notes
        return self

    def deselect_workspace_greater_than(self, workspace_limit):
        self.limit = workspace_limit
        return self

    def get_execution_plan_count(self):
        return len(self.plans)

    def get_engine_and_knobs_at_index(self, index):
        return self.plans[index]

    def build_plan_at_index(self, index):
        engine = self._engine(self.plans[index])
        if engine.number >= 20_000:
            raise AssertionError("a kernel of an optional package was compiled")
        if set(engine.notes) & set(self.refused) or engine.workspace + self.sums > self.limit:
            raise cudnnGraphNotSupportedError("Deselecting execution plan")
        self.selected = engine

    def get_workspace_size_plan_at_index(self, index):
        assert self.selected == self._engine(self.plans[index])
        return self.selected.workspace + self.sums

    def _engine(self, plan):
        number, knobs = plan
        for engine in ENGINES:
            if engine.number == number and engine.knobs == dict(knobs or {}):
                return engine
        raise cudnnGraphNotSupportedError(f"no engine {number} with {knobs}")

    def execute(self, tensor_dict, workspace=None, handle=None):
        assert handle in HANDLES
        assert handle.stream is not None
        assert all(type(a) is int and a % 16 == 0 for a in (*tensor_dict.values(), workspace))
        ctypes.memset(workspace, 0xFF, self.selected.workspace + self.sums)
        arrays = [t.at(tensor_dict[t.uid]) for t in self.operands]
        if self.selected.narrow:
            arrays = [a.astype(ml_dtypes.bfloat16) for a in arrays]
        found = self.compute_it(*(a.astype(np.float64) for a in arrays))
        for result, array in zip(self.results, found, strict=True):
            result.at(tensor_dict[result.uid])[...] = array


# --- arithmetic, place by place ---


def _convolve(kind, arrays, shape, before, behind, stride, dilation):
    """A loop over the places of a window; each is a product of two strided slices."""
    a, b = arrays
    if kind == "fprop":
        x, w, y = a, b, np.zeros(shape)
    elif kind == "dgrad":
        y, w, x = a, b, np.zeros(shape)
    else:
        x, y, w = a, b, np.zeros(shape)
    n, c, height, width = x.shape
    filters, channels, rows, columns = w.shape
    groups = c // channels
    high, wide = y.shape[2:]
    spread = (before[0] + height + behind[0], before[1] + width + behind[1])
    padded = np.zeros((n, c, *spread))
    inside = (..., slice(before[0], before[0] + height), slice(before[1], before[1] + width))
    reach = [(count - 1) * s for count, s in zip((high, wide), stride, strict=True)]
    taps = [(k - 1) * d for k, d in zip((rows, columns), dilation, strict=True)]
    for most, far, tap, step in zip(spread, reach, taps, stride, strict=True):
        assert 0 <= most - far - tap - 1 < step
    padded[inside] = x
    per = filters // groups
    for g in range(groups):
        own, out = slice(g * channels, (g + 1) * channels), slice(g * per, (g + 1) * per)
        for i in range(rows):
            for j in range(columns):
                top, left = i * dilation[0], j * dilation[1]
                part = (
                    slice(None), own,
                    slice(top, top + (high - 1) * stride[0] + 1, stride[0]),
                    slice(left, left + (wide - 1) * stride[1] + 1, stride[1]),
                )  # fmt: skip
                if kind == "fprop":
                    y[:, out] += np.einsum("nchw,kc->nkhw", padded[part], w[out, :, i, j])
                elif kind == "dgrad":
                    padded[part] += np.einsum("nkhw,kc->nchw", y[:, out], w[out, :, i, j])
                else:
                    w[out, :, i, j] += np.einsum("nkhw,nchw->kc", y[:, out], padded[part])
    return [{"fprop": y, "dgrad": padded[inside], "wgrad": w}[kind]]


def _mask(q, k, alignment, right):
    """True where a row sees a column."""
    rows, columns = q.dim[2], k.dim[2]
    if right is None:
        return np.ones((rows, columns), bool)
    shift = columns - rows if alignment == diagonal_alignment.BOTTOM_RIGHT else 0
    return np.arange(columns) <= np.arange(rows)[:, None] + shift + right


def _bytes_of_sums(q, k):
    """What a deterministic gradient of attention needs, which the frontend decides by a variable:
    16-bit scores of all pairs, unless they are more than that allows, else float32 sums of dq."""
    batch, heads, rows, width = q
    tiles = batch * heads * -(-rows // 64) * 64
    pairs = tiles * -(-k[2] // 128) * 128 * 2
    # Gradients of keys and values for every head, with values as wide as keys.
    tiles_of_keys = (heads != k[1]) * batch * heads * -(-k[2] // 128) * 128 * 4 * 2 * width
    limit = os.environ.get("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT")
    is_ordered = limit is not None and pairs > int(limit) >= 0
    return tiles * 4 + tiles_of_keys + (tiles * width * 4 if is_ordered else pairs)


def _per_head(q, *shared):
    """Keys and values, repeated for the heads of queries that share them."""
    return [np.repeat(each, q.shape[1] // each.shape[1], 1) for each in shared]


def _summed_heads(gradient, shared):
    batch, heads, *rest = shared.shape
    return gradient.reshape(batch, heads, -1, *rest).sum(2)


def _attend(q, k, v, scale, mask):
    k, v = _per_head(q, k, v)
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    stats = np.log(np.exp(scores).sum(-1, keepdims=True))
    return [np.exp(scores - stats) @ v, stats]


def _attend_back(q, keys, values, y, dy, stats, scale, mask):
    k, v = _per_head(q, keys, values)
    scores = np.where(mask, q @ k.swapaxes(-1, -2) * scale, -np.inf)
    weights = np.exp(scores - stats)
    along = (dy * y).sum(-1, keepdims=True)
    slopes = weights * (dy @ v.swapaxes(-1, -2) - along) * scale
    dk, dv = slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ dy
    return [slopes @ k, _summed_heads(dk, keys), _summed_heads(dv, values)]
