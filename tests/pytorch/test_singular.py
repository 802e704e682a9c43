"""Gradients at points where one branch of a function is singular: 0 times infinity is NaN."""

import itertools

import loops
import numpy as np
import pytest

import graphc as g
from graphc.errors import TorchError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases.operators import Called  # noqa: E402 - needs torch

F = torch.nn.functional


def wide(*given):
    return torch.tensor(given, dtype=torch.float64)


POINTS = wide(-2, -1, -0.5, -0.0, 0, 0.5, 1, 2, 3, 6, 25, 1e-3, -3e-3, 4e-3, 0.1)
UNIT = wide(0, 0.25, 0.5, 1, 0.75)
ROWS = wide([0, 0, 0], [1, 2, 2], [1, 0, 0], [1, 1, 1])
OTHERS = wide([0, 0, 0], [1, 2, 2], [0, 0, 0], [1, 1, 0])
BELOW = wide(0, 1, 0.5, 0, 2)

CASES = {
    "sinc": (torch.sinc, POINTS),
    "special sinc": (torch.special.sinc, POINTS),
    "logit": (torch.logit, UNIT),
    "clipped logit": (lambda x: torch.logit(x, 1e-6), UNIT),
    "xlogy": (torch.xlogy, wide(0, 1, 0.5, 2), wide(0.5, 1, 3, 2)),
    "xlogy by a constant": (lambda x: torch.xlogy(x, wide(0, 1, 2)), wide(0, 0, 1)),
    "xlog1py": (torch.special.xlog1py, wide(0, 1, 0, 2), wide(0.5, 1, 1e-12, 1e-12)),
    "entr": (torch.special.entr, wide(0.5, 1, 2)),
    "square root of norms": (lambda x: torch.linalg.vector_norm(x, 2, 1), ROWS),
    "cubic norms": (lambda x: torch.linalg.vector_norm(x, 3, 1), ROWS),
    "norms of half": (lambda x: torch.linalg.vector_norm(x, 0.5, 1), ROWS),
    "largest norms": (lambda x: torch.linalg.vector_norm(x, torch.inf, 1), ROWS),
    "normalize": (F.normalize, ROWS),
    "distances": (lambda x, y: torch.cdist(x, y), ROWS, OTHERS),
    "pairwise distances": (F.pairwise_distance, ROWS, OTHERS),
    "cosine similarity": (F.cosine_similarity, ROWS, OTHERS),
    "cosine loss": (lambda x, y: F.cosine_embedding_loss(x, y, wide(1, -1, 1, 1)), ROWS, OTHERS),
    "triplet loss": (lambda x, y: F.triplet_margin_loss(x, y, y.flip(0)), ROWS, OTHERS),
    "hypot": (torch.hypot, wide(0, 0, 3), wide(0, 1, 4)),
    "angles": (
        torch.atan2, wide(0, -0.0, 0, -0.0, 1, 0, -1), wide(0, 0, -0.0, -0.0, 0, -1, 0)
    ),
    "signs of zeros": (torch.copysign, wide(0, -0.0, 1, 1, -2), wide(-0.0, 0, -0.0, 0, -np.inf)),
    "gamma function at poles": (torch.lgamma, wide(0.0, 1e-20, -1e-20, 1, 2)),
    "digamma at its pole": (torch.digamma, wide(0.5, 1e-9, -1e-9, 3)),
    "products": (lambda x: x.prod(1), ROWS),
    "running products": (lambda x: x.cumprod(1), ROWS),
    "powers": (lambda x: x**1.5, BELOW),
    "zeroth powers": (lambda x: x**0, BELOW),
    "powers of 0": (lambda x: 0**x, BELOW),
    "float powers": (torch.float_power, wide(0, 0, 1, 2), wide(1, 2, 0, 3)),
    "deviations": (lambda x: x.std(1), ROWS),
    "logaddexp": (torch.logaddexp, ROWS, OTHERS),
    "logaddexp of -inf": (
        torch.logaddexp, wide(-np.inf, -np.inf, 0), wide(-np.inf, 0, -np.inf)
    ),
    "nan to num": (torch.nan_to_num, wide(np.nan, np.inf, -np.inf, 1)),
    "sums without nan": (lambda x: x.nansum(1), wide([0, np.nan, 1], [np.nan] * 3)),
    "poisson loss": (
        lambda x: F.poisson_nll_loss(x, wide(0, 0, 1, 2, 3), log_input=False, full=True), BELOW
    ),
    "kl divergence": (lambda x: F.kl_div(x, wide(0, 1, 0.5, 0, 0.2), reduction="sum"), UNIT),
    "log1p": (torch.log1p, wide(-0.999, -0.5, -1e-20, 0, 0.5, 1e3, 1e17, 1e300, np.inf)),
    "soft margin loss": (lambda x: F.soft_margin_loss(x, torch.ones_like(POINTS)), POINTS),
    "norms of a matrix": (lambda x: torch.linalg.matrix_norm(x, "fro"), 0 * ROWS),
    "sums of absolute values": (lambda x: torch.norm(x, 1, 1), ROWS),
    "least norms": (lambda x: torch.linalg.vector_norm(x, -torch.inf, 1), ROWS),
    "restricted norms": (lambda x: torch.renorm(x, 2, 0, 1.0), ROWS),
    "means without nan": (
        lambda x: torch.nanmean(x, 1), wide([0, np.nan, 1], [np.nan, np.nan, 2], [0, 0, 0])
    ),
    "quantiles of ties": (lambda x: torch.quantile(x, 0.4, 1), ROWS),
    "logaddexp2": (torch.logaddexp2, ROWS, OTHERS),
    "powers of no exponent": (torch.pow, wide(0, 0, 2, -1), wide(1, 2, 0, 2)),
    "polynomials at 0": (torch.linalg.vander, wide(0, 1, 2)),
    "powers of matrices": (lambda x: torch.linalg.matrix_power(x, 3), 0 * ROWS[:3]),
    "distances of sums": (lambda x, y: torch.cdist(x, y, p=1.0), ROWS, OTHERS),
    "cubic distances": (lambda x, y: torch.cdist(x, y, p=3.0), ROWS, OTHERS),
    "distances by products": (
        lambda x, y: torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist"), ROWS, OTHERS
    ),
    "pairs without epsilon": (lambda x, y: F.pairwise_distance(x, y, eps=0.0), ROWS, OTHERS),
    "swapped triplets": (
        lambda x, y: F.triplet_margin_loss(x, y, y.flip(0), swap=True), ROWS, OTHERS
    ),
    "hinge embeddings": (lambda x: F.hinge_embedding_loss(x, wide(1, -1, 1, 1, -1)), 2 * BELOW),
    "poisson loss of logarithms": (lambda x: F.poisson_nll_loss(x, UNIT, full=True), BELOW),
    "power pools": (lambda x: F.lp_pool1d(x.reshape(1, 4, 3), 3.0, 2), ROWS),
    "rows of one value": (lambda x: F.layer_norm(x, (3,)), ROWS),
    "rows of 0": (lambda x: F.rms_norm(x, (3,)), ROWS),
    "softmax of hidden rows": (
        lambda x: torch.softmax(x.masked_fill(x < 1, -torch.inf), 1), ROWS[1:]
    ),
    "products of updates": (
        lambda x, y: x.scatter_reduce(0, torch.tensor([[0, 0, 0], [0, 1, 1]]), y[:2], "prod"),
        ROWS, OTHERS,
    ),
    "smooth l1 of 0": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), ROWS, OTHERS),
}  # fmt: skip


ALONE = "quantiles of ties", "angles"
"""Cases that some versions of torch cannot export, or compute otherwise."""


def of_each(functions, counts):
    """Return a function of all arguments, which returns the results of all functions."""

    def call(*args):
        rest = iter(args)
        return tuple(
            function(*itertools.islice(rest, count))
            for function, count in zip(functions, counts, strict=True)
        )

    return call


def gradients_of_each(cases):
    """Return for each case the output and the gradients of its sum, by one network of graphc."""
    functions, args = [case[0] for case in cases], [case[1:] for case in cases]
    counts = [len(each) for each in args]
    given = [x.clone() for each in args for x in each]
    network = g.torch.load(Called(of_each(functions, counts)), given)
    inputs = list(network.inputs.values())
    outputs, taken = {}, iter(inputs)
    for number, (y, count) in enumerate(zip(network.outputs.values(), counts, strict=True)):
        found = g.gradient(g.sum(y), list(itertools.islice(taken, count)))
        outputs |= {f"y{number}": y} | {f"d{number}.{i}": d for i, d in enumerate(found)}
    feeds = {x.name: array.numpy() for x, array in zip(inputs, given, strict=True)}
    results = iter(g.compile(outputs=outputs, poison=True).step(feeds).values())
    return [list(itertools.islice(results, 1 + count)) for count in counts]


def gradients(function, *args):
    """Return the output and the gradients of its sum, by graphc."""
    return gradients_of_each([(function, *args)])[0]


TOGETHER = [name for name in CASES if name not in ALONE]


@pytest.mark.parametrize(
    "names", [TOGETHER, *([name] for name in ALONE)], ids=["all others", *ALONE]
)
def test_gradients_are_torchs(names):
    cases = [CASES[name] for name in names]
    for name, (function, *args), found in zip(names, cases, gradients_of_each(cases), strict=True):
        with loops.case(name):
            leaves = [x.clone().requires_grad_() for x in args]
            y = function(*leaves)
            wanted = [y, *torch.autograd.grad(y.sum(), leaves)]
            for ours, theirs in zip(found, wanted, strict=True):
                np.testing.assert_allclose(ours, theirs.numpy(force=True), rtol=1e-9, atol=1e-10)


def test_sinc_near_0_has_the_gradient_of_its_series():
    x = wide(1e-300, -1e-200, 1e-160, 1e-9, -1e-5)
    y, found = gradients(torch.sinc, x)
    np.testing.assert_allclose(y, 1.0, rtol=1e-9)
    np.testing.assert_allclose(found, -(np.pi**2) / 3 * x.numpy(), rtol=1e-8)


def test_gradients_are_finite_where_torchs_are_not():
    """Torch gives NaN or infinity there."""
    _, _, by_y = gradients(torch.xlogy, wide(0, 0), wide(0, -1))
    assert list(by_y) == [0, 0]
    y, by_x = gradients(torch.special.entr, wide(0.0, -1.0))
    assert list(y) == [0, -np.inf]
    assert list(by_x) == [0, 0]


def test_a_determinant_of_0_has_its_cofactors_as_gradient():
    """Torch gives 0."""
    y, found = gradients(torch.linalg.det, wide([1, 2, 3], [2, 4, 6], [0, 1, 1]))
    assert y == 0
    np.testing.assert_array_equal(found, [[-2, -2, 2], [1, 1, -1], [0, 0, 0]])


def test_soft_margin_loss_is_finite_where_exponentials_overflow():
    x = wide(-800, 800)
    y, found = gradients(lambda x: F.soft_margin_loss(x, torch.ones_like(x)), x)
    assert (y, list(found)) == (400, [-0.5, 0])


def test_binary_cross_entropy_of_certain_probabilities_has_finite_gradients():
    target = wide(0, 1, 1, 1, 0)
    y, found = gradients(lambda x: F.binary_cross_entropy(x, target), UNIT)
    np.testing.assert_allclose(y, F.binary_cross_entropy(UNIT, target), rtol=1e-12)
    inside = slice(1, 3)
    np.testing.assert_allclose(found[inside], -1 / (5 * UNIT[inside].numpy()), rtol=1e-12)
    assert np.isfinite(found).all()


def test_a_wrong_decomposition_is_refused():
    target = torch.tensor([[0, 1, -1]] * 4)
    with pytest.raises(TorchError, match=r"multilabel_margin_loss.*use multilabel_soft"):
        g.torch.load(Called(lambda x: F.multilabel_margin_loss(x, target)), (ROWS,))
