"""Small calls that move, join, reduce and look up elements: a function, and its arguments."""

import math

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch_cases.drawn import MAPS, A, P, X, Y, distinct, ints, randn

SHAPES = {
    "view": (lambda x: x.view(2, 6), [X]),
    "reshape of a transpose": (lambda x: x.t().reshape(2, 6), [X]),
    "flatten": (lambda x: (x.flatten(), x.flatten(1, 2), torch.ravel(x)), [MAPS]),
    "unflatten": (lambda x: x.unflatten(1, (2, 2)), [MAPS]),
    "squeezes": (lambda x: (x.unsqueeze(1).squeeze(1) * 2, x[:1].squeeze(), x.unsqueeze(-1)), [X]),
    "permute": (lambda x: x.permute(0, 2, -1, 1), [MAPS]),
    "transpose": (lambda x: (x.transpose(1, -1), x.mT, x[0, 0].T, x.swapaxes(0, 1)), [MAPS]),
    "movedim": (lambda x: (x.movedim(1, -1), torch.movedim(x, (0, 1), (2, 0))), [MAPS]),
    "expand": (
        lambda x: (x[:, None].expand(-1, 2, -1), x[0].expand(5, 4), x[:1].expand_as(x)),
        [X],
    ),
    "repeat": (lambda x: (x.repeat(2, 1, 3), x.tile(2), x.tile(2, 2)), [X]),
    "repeat interleave": (lambda x: (x.repeat_interleave(2, 1), x.repeat_interleave(3)), [X]),
    "repeat by counts": (
        lambda x: x.repeat_interleave(torch.tensor([1, 3, 2]), 0, output_size=6),
        [X],
    ),
    "cat": (lambda x, y: torch.cat([x, y, x * 2], 1), [X, Y]),
    "cat of dtypes": (lambda x, i: torch.cat([x, i]), [X, ints(5, 2, 4)]),
    "stack": (lambda x, y: (torch.stack([x, y], 1), torch.stack([x, y], -1)), [X, Y]),
    "hstack": (
        lambda x, y: (torch.hstack([x, y]), torch.vstack([x, y]), torch.dstack([x, y])),
        [X, Y],
    ),
    "split": (lambda x: [2 * p for p in x.split(3, 1)], [X]),
    "split sizes": (lambda x: [2 * p for p in x.split([1, 2, 1], 1)], [X]),
    "chunk": (lambda x: [2 * p for p in x.chunk(3, 1)], [X]),
    "tensor split": (lambda x: [2 * p for p in x.tensor_split(3, 1)], [X]),
    "unbind": (lambda x: [2 * p for p in x.unbind(1)], [X]),
    "select": (lambda x: (x[1] * 2, x[:, -1] * 3, x.select(1, 2)), [X]),
    "slices": (lambda x: (x[1:] * 2, x[:, ::2] * 3, x[-2:, 1:9], x[..., None]), [X]),
    "narrow": (lambda x: x.narrow(1, -3, 2) * 2, [X]),
    "assign a slice": (lambda x, y: assigned(x, y), [X, Y]),
    "flip": (lambda x: (x.flip(0), x.flip(0, 1), x.fliplr()), [X]),
    "roll": (lambda x: (x.roll(1, 0), x.roll((1, -2), (0, 1)), x.roll(2)), [X]),
    "pad": (
        lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 0, 2, 1), value=0.5), F.pad(x, (-1, 1))),
        [X],
    ),
    "pad reflect": (
        lambda x: (
            F.pad(x, (1, 2, 2, 1), "reflect"),
            F.pad(x, (1, 2, 0, 1), "replicate"),
            F.pad(x, (1, 2, 2, 1), "circular"),
        ),
        [MAPS],
    ),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), [X]),
    "diagonal": (lambda x: (x.diagonal(), x.diagonal(1), x.diagonal(-1) * 2), [X]),
    "diagonal of a stack": (lambda x: x.diagonal(1, 2, 3), [MAPS]),
    "pixel shuffles": (lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), [MAPS]),
    "channel shuffle": (lambda x: F.channel_shuffle(x, 2), [MAPS]),
    "unfold": (lambda x: x.unfold(2, 3, 2), [MAPS]),
    "windows as columns": (
        lambda x: (F.unfold(x, 3, 1, 1, 2), F.fold(F.unfold(x, 2, stride=2), 6, 2, stride=2)),
        [MAPS],
    ),
    "like": (
        lambda x: (
            x * torch.ones_like(x) + torch.zeros_like(x),
            torch.full_like(x, 2) * x,
            x.new_ones(2),
            x.new_full((2, 2), 3.0),
            torch.empty_like(x).fill_(2.0),
        ),
        [X],
    ),
    "known": (
        lambda x: (
            x + torch.arange(4),
            x * torch.linspace(0, 1, 4),
            x * torch.eye(4)[1],
            x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
            torch.zeros(2, 3),
        ),
        [X],
    ),
    "meshgrid": (lambda x, y: torch.meshgrid(x[0], y[:, 0], indexing="ij"), [X, Y]),
    "clone": (lambda x: (x.clone(), x.contiguous() * 2, x.t().contiguous()), [X]),
    "diag embed": (torch.diag_embed, [X]),
    "block of outer": (lambda x, y: (torch.outer(x[0], y[0]), torch.kron(x, y)), [X, Y]),
    "scalar": (lambda x: x[0, 0].squeeze().unsqueeze(0), [X]),
}


def assigned(x, y):
    """In-place writes of parts, which export makes functional."""
    z = x * 2
    z[:, 0] = 0
    z[1:, ::2] = y[1:, ::2]
    z[0, 1:3] += y[0, :2]
    return z


REDUCTIONS = {
    "sum": (
        lambda x: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True), x.sum(-1, keepdim=True)),
        [X],
    ),
    "mean": (lambda x: (x.mean(), x.mean(1), x.mean((2, 3), keepdim=True)), [MAPS]),
    "sum of integers and bools": (
        lambda x, i: (i.sum(), (x > 0).sum(), i.sum(0)),
        [X, ints(5, 3, 2)],
    ),
    "extremes": (lambda x: (x.amax(1), x.amin((0, 1)), x.max(), x.min(), x.aminmax()), [A]),
    "extremes with places": (lambda x: (*x.max(1), *x.min(0, keepdim=True), x.max(1)[0]), [A]),
    "places": (lambda x: (x.argmax(1), x.argmin(), x.argmax(0, keepdim=True)), [A]),
    "prod": (lambda x: (x.prod(), x.prod(1), x.prod(1, keepdim=True)), [X]),
    "var": (
        lambda x: (x.var(), x.var(1), x.var(1, unbiased=False), x.std((0, 1), correction=0)),
        [X],
    ),
    "var and mean": (lambda x: (*torch.var_mean(x, 1), *torch.std_mean(x, 1, keepdim=True)), [X]),
    "norms": (
        lambda x: (
            x.norm(),
            x.norm(dim=1),
            x.norm(1, dim=1),
            torch.linalg.vector_norm(x, 3, 0),
            torch.linalg.norm(x),
            x.norm(math.inf, dim=1),
        ),
        [A],
    ),
    "normalize": (lambda x: F.normalize(x, dim=1), [X]),
    "cosine similarity": (lambda x, y: F.cosine_similarity(x, y), [X, Y]),
    "pairwise distance": (lambda x, y: F.pairwise_distance(x, y), [X, Y]),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)), [X]),
    "all and any": (lambda x: ((x > 0).all(), (x > 0).any(1), (x > -9).all(1, keepdim=True)), [X]),
    "cumsum": (lambda x, i: (x.cumsum(1), x.cumsum(0), i.cumsum(0)), [X, ints(5, 3, 2)]),
    "topk": (lambda x: (*x.topk(2), *x.topk(3, 0, largest=False)), [A]),
    "sort": (lambda x: (*x.sort(1), *x.sort(0, descending=True), x.argsort(1)), [A]),
    "median of three": (lambda x: x.sort(0)[0][1], [A]),
    "count": (lambda x: (x > 0).count_nonzero(), [X]),
    "cumprod": (lambda x: x.cumprod(1), [P]),
}

TABLE = randn(7, 4)
PLACES = ints(7, 2, 3)
FIRST = torch.tensor([[0, 2, 1, 4], [3, 3, 0, 1]])

INDEXING = {
    "embedding": (lambda i, w: F.embedding(i, w), [PLACES, TABLE]),
    "embedding with padding": (lambda i, w: F.embedding(i, w, padding_idx=2), [PLACES, TABLE]),
    "gather": (lambda x, i: x.gather(1, i), [A, FIRST]),
    "gather of fewer": (lambda x: x.gather(0, torch.tensor([[2, 0]])), [A]),
    "take along": (lambda x, i: torch.take_along_dim(x, i, 1), [A[:2], FIRST]),
    "index select": (lambda x, i: x.index_select(1, i), [A, torch.tensor([0, 4, 4])]),
    "index": (lambda x, i: (x[i], x[:, i]), [TABLE, torch.tensor([0, -1, 3])]),
    "index by pairs": (lambda x, i, j: x[i, j], [TABLE, ints(7, 5), ints(4, 5)]),
    "index by several": (
        lambda x, i, j: (x[:, i, j], x[i, :, j], x[:, i, :, j]),
        [MAPS, ints(2, 3), ints(4, 3)],
    ),
    "index broadcasts": (lambda x, i: x[torch.arange(2)[:, None], i], [A[:2], FIRST[:, :3]]),
    "index put by a known mask": (
        lambda x: x.index_put(
            (torch.tensor([True, False, True]),), torch.tensor(2.0, dtype=x.dtype)
        ),
        [A],
    ),
    "index put": (lambda x, y, i: put(x, y, i), [TABLE, randn(2, 4), torch.tensor([5, 1])]),
    "index put adds": (
        lambda x, y, i: x.index_put((i,), y, accumulate=True),
        [TABLE, randn(3, 4), torch.tensor([1, 5, 1])],
    ),
    "index put by pairs": (
        lambda x, y, i, j: x.index_put((i, j), y),
        [TABLE, randn(3), torch.tensor([0, 2, 4]), torch.tensor([1, 1, 3])],
    ),
    "index put behind": (lambda x, i: masked(x, i), [MAPS, torch.tensor([3, 1])]),
    "assign by a mask": (lambda x: x.index_put((x > 0.5,), torch.tensor(0.0, dtype=x.dtype)), [X]),
    "index add": (lambda x, y: x.index_add(0, torch.tensor([1, 1, 3]), y), [TABLE, randn(3, 4)]),
    "index add along": (
        lambda x, y: x.index_add(1, torch.tensor([1, 0]), y, alpha=0.5),
        [TABLE, randn(7, 2)],
    ),
    "index copy": (lambda x, y: x.index_copy(1, torch.tensor([1, 0]), y), [TABLE, randn(7, 2)]),
    "index fill": (lambda x: x.index_fill(0, torch.tensor([1, 0]), 0.5), [TABLE]),
    "scatter": (
        lambda x, y, i: x.scatter(1, i, y),
        [A, randn(2, 4), torch.tensor([[0, 2, 1, 4], [3, 2, 0, 1]])],
    ),
    "scatter a number": (lambda x, i: x.scatter(1, i, 0.5), [A, FIRST]),
    "scatter add": (lambda x, y, i: x.scatter_add(1, i, y), [A, randn(2, 4), FIRST]),
    "scatter reduce": (
        lambda x, y, i: (
            x.scatter_reduce(1, i, y, "sum"),
            x.scatter_reduce(1, i, y, "amax", include_self=False),
        ),
        [A, 9 * distinct(2, 4), FIRST],
    ),
    "one hot": (lambda i: F.one_hot(i, 7), [PLACES]),
    "filled indices": (
        lambda x, i: (
            F.embedding(torch.zeros_like(i), x),
            x[torch.full((2,), 3)],
            x[x.new_zeros(2, dtype=torch.long)],
            x[torch.tensor(0)],
            x.index_select(0, torch.arange(1)),
            x.gather(1, torch.zeros(7, 2, dtype=torch.long)),
        ),
        [TABLE, PLACES],
    ),
    "updates at filled indices": (
        lambda x, y: (
            x.index_add(0, torch.zeros(3, dtype=torch.long), y),
            x.index_put((torch.tensor([2, 2, 2]),), y, accumulate=True),
            x.scatter_add(0, torch.zeros(3, 4, dtype=torch.long), y),
        ),
        [TABLE, randn(3, 4)],
    ),
    "losses of filled labels": (
        lambda x: (
            F.cross_entropy(x, torch.zeros(7, dtype=torch.long)),
            F.nll_loss(x, x.new_zeros(7, dtype=torch.long)),
            F.one_hot(torch.full((3,), 2), 4),
        ),
        [TABLE],
    ),
    "select scatter": (lambda x, y: torch.select_scatter(x, y[0], 0, 1), [X, Y]),
    "bucket of a table": (lambda i, w: w[i].sum(1), [PLACES, TABLE]),
    "isin": (lambda i: torch.isin(i, torch.tensor([1, 4])), [PLACES]),
}


def put(x, y, i):
    """An assignment by numbers."""
    z = x.clone()
    z[i] = y
    return z


def masked(x, i):
    """An assignment by numbers along an inner axis."""
    z = x * 2
    z[:, i] = 0.5
    return z
