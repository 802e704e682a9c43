"""Windows along any number of axes by NumPy, for what convolutions and pools are compared with."""

import numpy as np


def all_windows(x, size, stride, sides, dilation, fill=0.0):
    """Each window of x (batch, channels, *extents): (batch, channels, *windows, *size)."""
    axes = tuple(range(2, x.ndim))
    wide = np.pad(x, ((0, 0), (0, 0), *sides), constant_values=fill)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(wide, reach, axes)
    steps = [slice(None, None, s) for s in stride]
    taps = [slice(None, None, d) for d in dilation]
    return found[(slice(None), slice(None), *steps, *taps)]


def convolution(x, w, stride, sides, dilation, groups):
    """Each window times each filter, in float64."""
    letters = "rstu"[: x.ndim - 2]
    places = "ijkl"[: x.ndim - 2]
    parts = []
    for group, filters in zip(np.split(x, groups, 1), np.split(w, groups, 0), strict=True):
        seen = all_windows(group, w.shape[2:], stride, sides, dilation)
        parts.append(np.einsum(f"nc{places}{letters},fc{letters}->nf{places}", seen, filters))
    return np.concatenate(parts, 1)
