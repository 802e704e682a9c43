"""Maps of one to three axes against torch in float64: values and gradients. In `make nightly`."""

import numpy as np
import pytest
from peers.comparison import RNG, close

import graphc as g

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

EXTENTS = {1: (11,), 2: (9, 10), 3: (5, 6, 7)}


def compare(build, peer, shapes, domain=(-2.0, 2.0)):
    """One function of tensors in both: the result, and the gradient of a weighted sum of it."""
    inputs = [g.input(f"x{i}", shape, "float64") for i, shape in enumerate(shapes)]
    feeds = {x.name: RNG.uniform(*domain, x.shape) for x in inputs}
    tensors = [torch.tensor(array, requires_grad=True) for array in feeds.values()]
    wanted = peer(*tensors)
    share = RNG.standard_normal(tuple(wanted.shape))
    (wanted * torch.tensor(share)).sum().backward()
    y = build(*inputs)
    weights = g.input("share", y.shape, "float64")
    gradients = g.gradient(g.sum(y * weights), inputs)
    named = {f"d{x.name}": d for x, d in zip(inputs, gradients, strict=True)}
    program = g.compile(outputs={"y": y, **named}, training=True, poison=True)
    given = {**feeds, "share": share}
    found = program.step({x.name: given[x.name] for x in program.graph.inputs})
    close(found["y"], wanted.detach().numpy())
    for x, tensor in zip(inputs, tensors, strict=True):
        close(found[f"d{x.name}"], tensor.grad.numpy())


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions(axes):
    forward = {1: g.conv1d, 2: g.conv2d, 3: g.conv3d}[axes]
    back = {1: g.conv_transpose1d, 2: g.conv_transpose2d, 3: g.conv_transpose3d}[axes]
    peer = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[axes]
    peer_back = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[axes]
    x, window = (2, 4, *EXTENTS[axes]), (3, 2, 2)[:axes]
    options = {"stride": 2, "padding": 1, "dilation": 1, "groups": 2}
    compare(
        lambda x, w, b: forward(x, weight=w, bias=b, **options),
        lambda x, w, b: peer(x, w, b, **options),
        (x, (6, 2, *window), (6,)),
    )
    compare(
        lambda x, w, b: back(x, weight=w, bias=b, output_padding=1, **options),
        lambda x, w, b: peer_back(x, w, b, output_padding=1, **options),
        (x, (4, 3, *window), (6,)),
    )


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_pools(axes, ceil_mode):
    x = (2, 3, *EXTENTS[axes])
    largest = {1: g.max_pool1d, 2: g.max_pool2d, 3: g.max_pool3d}[axes]
    peer = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[axes]
    for dilation, padding in ((2, 1), (1, 0)):
        compare(
            lambda x, d=dilation, p=padding: largest(x, 3, 2, p, d, ceil_mode),
            lambda x, d=dilation, p=padding: peer(x, 3, 2, p, d, ceil_mode),
            (x,),
        )
    average = {1: g.average_pool1d, 2: g.average_pool2d, 3: g.average_pool3d}[axes]
    peer = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[axes]
    for counts in (False, True):
        compare(
            lambda x, c=counts: average(x, 3, 2, 1, 1, ceil_mode, c),
            lambda x, c=counts: peer(x, 3, 2, 1, ceil_mode, c),
            (x,),
        )


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize(("form", "mode"), [("linear", "bilinear"), ("cubic", "bicubic")])
def test_resizing(form, mode, align_corners):
    coordinates = "align_corners" if align_corners else "half_pixel"
    for extents in ((5, 13), (18, 4)):
        compare(
            lambda x, e=extents: g.resize(x, (2, 3, *e), form=form, coordinates=coordinates),
            lambda x, e=extents: F.interpolate(x, e, mode=mode, align_corners=align_corners),
            ((2, 3, 9, 10),),
        )
    if not align_corners:
        compare(
            lambda x: g.resize(
                x, (2, 3, 4, 7), form=form, antialias=True, cubic=-0.5, exclude_outside=True
            ),
            lambda x: F.interpolate(x, (4, 7), mode=mode, antialias=True),
            ((2, 3, 9, 10),),
        )


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sampling(padding, align_corners):
    for form, mode, extents in (
        ("linear", "bilinear", (5, 4)), ("cubic", "bicubic", (5, 4)),
        ("linear", "bilinear", (3, 4, 5)),
    ):  # fmt: skip
        axes = len(extents)
        compare(
            lambda x, p, f=form: g.grid_sample(x, p, f, padding, align_corners),
            lambda x, p, m=mode: F.grid_sample(x, p, m, padding, align_corners),
            ((2, 3, *extents), (2, *(3,) * axes, axes)),
        )


def test_padding_folding_and_shuffling():
    for mode, peer in (("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")):
        compare(
            lambda x, m=mode: g.pad(x, ((0, 0), (0, 0), (2, 1), (0, 3)), m),
            lambda x, m=peer: F.pad(x, (0, 3, 2, 1), mode=m),
            ((2, 3, 5, 4),),
        )
    compare(
        lambda x: g.im2col(x, (2, 3), (1, 2), 1, (2, 1)),
        lambda x: F.unfold(x, (2, 3), (2, 1), 1, (1, 2)),
        ((2, 3, 6, 7),),
    )
    compare(
        lambda x: g.col2im(x, (6, 7), (2, 3), 2, 1),
        lambda x: F.fold(x, (6, 7), (2, 3), 1, 1, 2),
        ((2, 12, 16),),
    )
    shape = (2, 12, 2, 3)
    compare(lambda x: g.depth_to_space(x, 2, "CRD"), lambda x: F.pixel_shuffle(x, 2), (shape,))
    compare(
        lambda x: g.space_to_depth(x, 2, "CRD"), lambda x: F.pixel_unshuffle(x, 2), ((2, 3, 4, 6),)
    )


def test_instance_norm():
    compare(
        lambda x, s, b: g.instance_norm(x, scale=s, bias=b),
        lambda x, s, b: F.instance_norm(x, weight=s, bias=b),
        ((2, 3, 4, 5), (3,), (3,)),
    )


def test_places_of_largest_elements():
    x = g.input("x", (2, 3, 9, 10), "float64")
    y, places = g.max_pool_with_indices(x, 3, 2, 1)
    given = RNG.standard_normal(x.shape)
    found = g.compile(outputs={"y": y, "places": places}).step(x=given)
    wanted = F.max_pool2d(torch.tensor(given), 3, 2, 1, return_indices=True)
    np.testing.assert_array_equal(found["y"], wanted[0].numpy())
    np.testing.assert_array_equal(found["places"], wanted[1].numpy())
