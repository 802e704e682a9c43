"""Small calls of layers and losses: a module or a function, and its arguments."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch_cases.drawn import MAPS, P, X, Y, distinct, ints, rand, randn

SQUARE = randn(2, 3, 3)

PRODUCTS = {
    **{
        f"{n} rows": (
            lambda x: (torch.linalg.det(x), torch.linalg.inv(x), *torch.linalg.slogdet(x)),
            [randn(2, n, n)],
        )
        for n in range(1, 5)
    },
    "linear": (nn.Linear(4, 5), [X]),
    "linear without bias": (nn.Linear(4, 5, bias=False), [randn(2, 3, 4)]),
    "linear of a vector": (nn.Linear(4, 5), [X[0]]),
    "bilinear": (nn.Bilinear(4, 4, 2), [X, Y]),
    "matmul": (lambda x, y: (x @ y.t(), x @ y[0], x[0] @ y.t(), x[0] @ y[0]), [X, Y]),
    "matmul of stacks": (torch.matmul, [randn(2, 1, 3, 4), randn(5, 4, 2)]),
    "matmul by one": (torch.matmul, [randn(2, 5, 3, 4), randn(4, 2)]),
    "bmm": (torch.bmm, [randn(2, 3, 4), randn(2, 4, 5)]),
    "mm": (lambda x, y: (torch.mm(x, y.t()), torch.mv(x, y[0]), torch.dot(x[0], y[0])), [X, Y]),
    "addmm": (lambda x, y, z: torch.addmm(z, x, y.t(), beta=0.5, alpha=2), [X, Y, randn(3)]),
    "baddbmm": (lambda x, y, z: torch.baddbmm(z, x, y), [SQUARE, SQUARE, randn(2, 3, 3)]),
    "einsum": (
        lambda x, y: (torch.einsum("bij,bkj->bik", x, y), torch.einsum("bii->b", x)),
        [SQUARE, randn(2, 3, 3)],
    ),
    "outer": (lambda x, y: torch.outer(x[0], y[0]), [X, Y]),
    "weight norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), [X]),
    "tensordot": (lambda x, y: torch.tensordot(x, y, dims=([1, 2], [1, 2])), [SQUARE, SQUARE * 2]),
    "cdist": (lambda x, y: torch.cdist(x, y + 3), [X, Y]),
}

CONVOLUTIONS = {
    "conv1d": (nn.Conv1d(4, 6, 3, 2, 1), [randn(2, 4, 9)]),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), 2, 1, (1, 2), bias=False), [MAPS]),
    "conv2d groups": (nn.Conv2d(4, 8, 3, groups=4), [MAPS]),
    "conv2d same": (nn.Conv2d(4, 3, 4, padding="same"), [MAPS]),
    "conv2d valid": (nn.Conv2d(4, 3, 3, padding="valid"), [MAPS]),
    "conv2d reflect": (nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"), [MAPS]),
    "conv2d of one map": (nn.Conv2d(4, 3, 3), [MAPS[0]]),
    "conv3d": (nn.Conv3d(2, 3, 2), [randn(2, 2, 4, 4, 3)]),
    "transposed 1d": (nn.ConvTranspose1d(4, 3, 3, 2, 1, 1), [randn(2, 4, 5)]),
    "transposed 2d": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), [MAPS]),
    "transposed 3d": (nn.ConvTranspose3d(2, 3, 2, 2), [randn(1, 2, 3, 2, 2)]),
}

POOLS = {
    "max": (
        lambda x: (F.max_pool2d(x, 2), F.max_pool2d(x, 3, 2, 1), F.max_pool2d(x, (2, 3), 1)),
        [distinct(2, 4, 6, 6)],
    ),
    "max ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), [distinct(2, 4, 6, 6)]),
    "max with places": (lambda x: F.max_pool2d(x, 2, return_indices=True), [distinct(2, 4, 6, 6)]),
    "max 1d and 3d": (
        lambda x: (F.max_pool1d(x[0], 2), F.max_pool3d(x, 2)),
        [distinct(2, 4, 6, 6)],
    ),
    "average": (
        lambda x: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        ),
        [MAPS],
    ),
    "average over a number": (lambda x: F.avg_pool2d(x, 2, divisor_override=3), [MAPS]),
    "average 1d and 3d": (lambda x: (F.avg_pool1d(x[0], 2), F.avg_pool3d(x, 2)), [MAPS]),
    "adaptive average": (
        lambda x: (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (4, 3)),
            F.adaptive_avg_pool1d(x[0], 3),
        ),
        [MAPS],
    ),
    "adaptive largest": (
        lambda x: (F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x, 3)),
        [distinct(2, 4, 6, 6)],
    ),
    "lp": (lambda x: F.lp_pool2d(x, 2.0, 2), [MAPS]),
    "nearest": (
        lambda x: (
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, (9, 4)),
            F.interpolate(x, scale_factor=1.5),
        ),
        [MAPS],
    ),
    "bilinear": (
        lambda x: (
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, (9, 5), mode="bilinear"),
            F.interpolate(x, (9, 5), mode="bilinear", align_corners=True),
        ),
        [MAPS],
    ),
    "bicubic": (
        lambda x: (
            F.interpolate(x, (9, 5), mode="bicubic"),
            F.interpolate(x, (9, 5), mode="bicubic", align_corners=True),
        ),
        [MAPS],
    ),
    "nearest exact": (lambda x: F.interpolate(x, (9, 4), mode="nearest-exact"), [MAPS]),
    "antialiased": (lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), [MAPS]),
    "linear and trilinear": (
        lambda x: (
            F.interpolate(x[0], 9, mode="linear"),
            F.interpolate(x[:, None], (3, 4, 5), mode="trilinear"),
        ),
        [MAPS],
    ),
    "grid": (
        lambda x, p: F.grid_sample(x, p, align_corners=False),
        [MAPS, 1.6 * rand(2, 5, 5, 2) - 0.8],
    ),
}

NORMS = {
    "batch norm": (nn.BatchNorm2d(4), [MAPS]),
    "batch norm 1d": (nn.BatchNorm1d(4), [X]),
    "batch norm outside of training": (nn.BatchNorm2d(4).eval(), [MAPS]),
    "batch norm without weights": (nn.BatchNorm2d(4, affine=False), [MAPS]),
    "batch norm without running statistics": (nn.BatchNorm2d(4, track_running_stats=False), [MAPS]),
    "layer norm": (nn.LayerNorm(4), [X]),
    "layer norm over two axes": (nn.LayerNorm((6, 6)), [MAPS]),
    "layer norm without weights": (nn.LayerNorm(4, elementwise_affine=False), [X]),
    "layer norm without bias": (nn.LayerNorm(4, bias=False), [X]),
    "group norm": (nn.GroupNorm(2, 4), [MAPS]),
    "instance norm": (nn.InstanceNorm2d(4), [MAPS]),
    "instance norm with weights": (nn.InstanceNorm2d(4, affine=True), [MAPS]),
    "rms norm": (nn.RMSNorm(4), [X]),
    "rms norm with a guard": (nn.RMSNorm(4, eps=1e-5), [X]),
    "local response": (nn.LocalResponseNorm(3), [MAPS]),
}

Q, K, V = (randn(2, 4, 5, 3) for _ in range(3))
SHORT = randn(2, 4, 3, 3)

ATTENTION = {
    "plain": (F.scaled_dot_product_attention, [Q, K, V]),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [Q, K, V]),
    "causal with fewer rows": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [SHORT, K, V],
    ),
    "scale": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3), [Q, K, V]),
    "mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m > 0.3),
        [Q, K, V, rand(2, 1, 5, 5)],
    ),
    "added mask": (F.scaled_dot_product_attention, [Q, K, V, randn(5, 5)]),
    "shared heads": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        [Q, K[:, :2], V[:, :2]],
    ),
    "padding": (lambda x: padded(x), [randn(2, 5, 8)]),
    "multi-head": (nn.MultiheadAttention(8, 2, batch_first=True), [randn(2, 5, 8)] * 3),
    "multi-head with other keys": (
        nn.MultiheadAttention(8, 2, kdim=6, vdim=4),
        [randn(5, 2, 8), randn(3, 2, 6), randn(3, 2, 4)],
    ),
    "encoder layer": (
        nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", norm_first=True),
        [randn(5, 2, 8)],
    ),
    "decoder layer": (
        nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True),
        [randn(2, 5, 8), randn(2, 3, 8)],
    ),
}


def padded(x):
    """Attention that does not see what is padding, which is known."""
    mask = torch.tensor([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]]).bool()
    return F.scaled_dot_product_attention(x, x, x, ~mask[:, None])


CELLS = {
    "lstm": (nn.LSTM(4, 3, 2), [randn(5, 2, 4)]),
    "lstm bidirectional": (
        nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True),
        [randn(2, 5, 4)],
    ),
    "lstm without bias": (nn.LSTM(4, 3, bias=False), [randn(5, 2, 4)]),
    "lstm projected": (nn.LSTM(4, 3, proj_size=2), [randn(5, 2, 4)]),
    "lstm from states": (nn.LSTM(4, 3), [randn(5, 2, 4), (randn(1, 2, 3), randn(1, 2, 3))]),
    "lstm of one sequence": (nn.LSTM(4, 3), [randn(5, 4)]),
    "gru": (nn.GRU(4, 3, 2, bidirectional=True), [randn(5, 2, 4)]),
    "rnn": (nn.RNN(4, 3, 2), [randn(5, 2, 4)]),
    "rnn relu": (nn.RNN(4, 3, nonlinearity="relu"), [randn(5, 2, 4)]),
    "lstm cell": (nn.LSTMCell(4, 3), [X, (randn(3, 3), randn(3, 3))]),
    "gru cell": (nn.GRUCell(4, 3), [X, randn(3, 3)]),
    "rnn cell": (nn.RNNCell(4, 3), [X, randn(3, 3)]),
}

LABELS = torch.tensor([1, -100, 3])
DENSE = torch.softmax(randn(3, 4), 1)

LOSSES = {
    "cross entropy": (F.cross_entropy, [X, LABELS]),
    "cross entropy of maps": (F.cross_entropy, [MAPS, ints(4, 2, 6, 6)]),
    "cross entropy of one": (F.cross_entropy, [X[0], torch.tensor(2)]),
    "cross entropy with weights": (
        lambda x, t: F.cross_entropy(x, t, torch.tensor([1.0, 2.0, 0.5, 1.5], dtype=x.dtype)),
        [X, LABELS],
    ),
    "cross entropy smoothed": (
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        [X, LABELS],
    ),
    "cross entropy sum": (
        lambda x, t: (
            F.cross_entropy(x, t, reduction="sum"),
            F.cross_entropy(x, t, reduction="none"),
        ),
        [X, LABELS],
    ),
    "cross entropy of probabilities": (lambda x: F.cross_entropy(x, DENSE), [X]),
    "nll": (lambda x, t: F.nll_loss(x.log_softmax(1), t), [X, LABELS]),
    "nll of maps": (
        lambda x, t: F.nll_loss(x.log_softmax(1), t, reduction="sum"),
        [MAPS, ints(4, 2, 6, 6)],
    ),
    "mse": (lambda x, y: (F.mse_loss(x, y), F.mse_loss(x, y, reduction="sum")), [X, Y]),
    "l1": (lambda x, y: (F.l1_loss(x, y), F.l1_loss(x, y, reduction="none")), [X, Y]),
    "smooth l1": (lambda x, y: (F.smooth_l1_loss(x, y), F.smooth_l1_loss(x, y, beta=0.5)), [X, Y]),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.7), [X, Y]),
    "bce with logits": (lambda x, p: F.binary_cross_entropy_with_logits(x, p), [X, P]),
    "bce with weights": (
        lambda x, p: F.binary_cross_entropy_with_logits(
            x, p, weight=p.detach() + 1, pos_weight=p.detach()[0] + 2
        ),
        [X, P],
    ),
    "bce": (F.binary_cross_entropy, [P, rand(3, 4)]),
    "kl": (lambda x, p: F.kl_div(x.log_softmax(1), p, reduction="batchmean"), [X, P]),
    "poisson nll": (F.poisson_nll_loss, [X, P]),
    "margin": (lambda x, y: F.margin_ranking_loss(x, y, torch.ones(3, 4, dtype=x.dtype)), [X, Y]),
    "triplet": (lambda x, y: F.triplet_margin_loss(x, y, x * y), [X, Y]),
    "cosine": (lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1])), [X, Y]),
    "soft margin": (lambda x: F.soft_margin_loss(x, torch.ones(3, 4, dtype=x.dtype)), [X]),
    "multilabel": (lambda x, p: F.multilabel_soft_margin_loss(x, p), [X, P]),
}
