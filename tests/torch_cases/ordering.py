"""Small calls that order elements, search them and reduce bags, with ties and NaN."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch_cases.drawn import MAPS, A, X, Y, distinct, ints, randn

TIES = torch.tensor([[2.0, 1, 2, 0, 2], [1, 1, 1, 1, 1], [3, 0, 3, 3, 0]], dtype=torch.float64)
NANS = torch.tensor([[2.0, torch.nan, 2, 0], [1, 3, torch.nan, torch.nan], [1, 2, 3, 4]])
INFINITE = torch.tensor([[-torch.inf, -torch.inf, 0, 1], [1, -torch.inf, torch.inf, 2]])
BOUNDS = torch.tensor([-1.0, 0, 0, 1], dtype=torch.float64)
ROWS = distinct(3, 6).sort(1)[0]

ORDER = {
    "median": (lambda x: (*x.median(1), *x.median(0, keepdim=True), x.median()), [A]),
    "median of ties": (lambda x: (x.median(1)[0].detach(), x.median()), [TIES]),
    "median with nan": (lambda x: x.median(1), [NANS]),
    "median of all with nan": (lambda x: x.detach().median(), [NANS]),
    "median of integers": (lambda i: (i.median(), i.median(1)[0]), [ints(9, 3, 5)]),
    "median of a number": (lambda x: (*x.sum().median(0), x.sum().median()), [X]),
    "k-th value": (lambda x: (*x.kthvalue(2, 1), *x.kthvalue(3, 0, keepdim=True)), [A]),
    "running extremes": (lambda x: (*x.cummax(1), *x.cummin(0)), [A]),
    "running extremes of ties": (lambda x: (*x.cummax(1), *x.cummin(1)), [TIES]),
    "running extremes with nan": (lambda x: (*x.cummax(1), *x.cummin(1)), [NANS]),
    "running extremes of integers": (lambda i: (*i.cummax(0), *i.cummin(0)), [ints(4, 7, 2)]),
    "running log sums": (lambda x: (x.logcumsumexp(1), (9e2 * x).logcumsumexp(0)), [X]),
    "running log sums of infinities": (lambda x: x.detach().logcumsumexp(1), [INFINITE]),
    "bucketize": (
        lambda x: (
            torch.bucketize(x, BOUNDS),
            torch.bucketize(x, BOUNDS, right=True, out_int32=True),
            torch.bucketize(x.sum(), BOUNDS),
        ),
        [torch.cat([X, torch.full((1, 4), torch.nan), TIES[:, :4]])],
    ),
    "bucketize integers": (lambda i: torch.bucketize(i, torch.tensor([1, 3])), [ints(5, 6)]),
    "searchsorted": (
        lambda s, x: (
            torch.searchsorted(s, x), torch.searchsorted(s, s, side="right"),
            torch.searchsorted(s[0], x), torch.searchsorted(s[0], 0.5),
        ),
        [ROWS, X],
    ),
    "searchsorted by an order": (
        lambda s, x: torch.searchsorted(s, x, sorter=s.argsort(1)), [A, X]
    ),
}  # fmt: skip

WEIGHTS = randn(3, 2)
TABLE = distinct(7, 4)
PLACES = torch.tensor([[0, 2, 2], [6, 3, 0]])
LISTED, STARTS = torch.tensor([1, 4, 4, 0, 2, 6]), torch.tensor([0, 3, 3])

BAGS = {
    **{f"bags by {mode}": (lambda w, mode=mode: F.embedding_bag(PLACES, w, mode=mode), [TABLE])
       for mode in ("sum", "mean", "max")},
    **{f"bags with padding by {mode}": (
        lambda i, w, mode=mode: F.embedding_bag(i, w, mode=mode, padding_idx=2), [PLACES, TABLE])
       for mode in ("sum", "mean", "max")},
    **{f"bags with offsets by {mode}": (
        lambda i, w, mode=mode: F.embedding_bag(i, w, STARTS, mode=mode), [LISTED, TABLE])
       for mode in ("sum", "mean", "max")},
    "bags of equal rows": (
        lambda w: F.embedding_bag(PLACES, w, mode="max"), [torch.ones(7, 4, dtype=torch.float64)]
    ),
    "bags of computed offsets": (lambda i, o, w: F.embedding_bag(i, w, o), [LISTED, STARTS, TABLE]),
    "bags with a last offset": (
        lambda i, w: F.embedding_bag(
            i, w, torch.tensor([0, 2, 6]), mode="max", include_last_offset=True
        ),
        [LISTED, TABLE],
    ),
    "weighted bags": (
        lambda i, w, p: F.embedding_bag(i, w, per_sample_weights=p, mode="sum"),
        [PLACES, TABLE, WEIGHTS.reshape(2, 3)],
    ),
    "bags as a layer": (nn.EmbeddingBag(7, 4, padding_idx=0), [PLACES]),
}  # fmt: skip

WRITES = {
    "masked scatter": (lambda x, y: x.masked_scatter(x > 0, y), [X, Y]),
    "masked scatter broadcasts": (lambda x, y: x.masked_scatter(x[:, :1] > 0, y), [X, Y]),
    **{f"index reduce by {reduce}": (
        lambda x, y, reduce=reduce: (
            x.index_reduce(0, torch.tensor([0, 2, 0]), y, reduce),
            x.index_reduce(1, torch.tensor([1, 3, 1]), y[:, :3], reduce, include_self=False),
        ), [X, Y])
       for reduce in ("prod", "mean", "amax", "amin")},
    "index reduce of ties": (
        lambda x, y: x.index_reduce(0, torch.tensor([0, 1, 0]), y, "amax"), [TIES, TIES.flip(0)]
    ),
    "index reduce of zeros": (
        lambda x, y: x.index_reduce(0, torch.tensor([0, 2, 2]), y, "mean"), [TIES, TIES.flip(1)]
    ),
    "scatter reduce by mean": (
        lambda x, y: (
            x.scatter_reduce(1, torch.tensor([[0, 1, 0]] * 3), y[:, :3], "mean"),
            x.scatter_reduce(
                1, torch.tensor([[0, 1, 0]] * 3), y[:, :3], "mean", include_self=False
            ),
        ),
        [X, Y],
    ),
    "diagonal scatter": (
        lambda x, y: (
            x.diagonal_scatter(y[:, 0]), x.diagonal_scatter(y[0, :3], 1),
            x.diagonal_scatter(y[0, :2], -1),
        ),
        [X, Y],
    ),
    "diagonal scatter of a stack": (
        lambda x: x.diagonal_scatter(2 * x.diagonal(1, 1, 3), 1, 1, 3), [MAPS]
    ),
}  # fmt: skip

UNEVEN = {
    "adaptive maxima": (
        lambda x: (
            F.adaptive_max_pool2d(x, (4, 5)),
            *F.adaptive_max_pool2d(x, (5, 4), return_indices=True),
            F.adaptive_max_pool1d(x[0], 4),
            F.adaptive_max_pool3d(x, (3, 4, 5)),
        ),
        [distinct(2, 4, 6, 7)],
    ),
    "adaptive maxima of ties": (
        lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True), [TIES.expand(2, 3, 5)]
    ),
    "adaptive means": (
        lambda x: (
            F.adaptive_avg_pool1d(x[0], 5),
            F.adaptive_avg_pool3d(x, (3, 4, 5)),
            F.adaptive_avg_pool2d(x, (4, 5)),
        ),
        [MAPS],
    ),
}  # fmt: skip
