"""Plans differentiate the loss of an output, and none of its other tensors."""

from collections import namedtuple

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError  # noqa: E402

Output = namedtuple("Output", "loss logits hidden")
ROWS, WIDTH, CLASSES = 256, 64, 1024
X, Y = torch.randn(ROWS, WIDTH), torch.randint(CLASSES, (ROWS,))
LOGITS_BYTES = 4 * ROWS * CLASSES


class Head(nn.Module):
    """Returns a loss, the logits that it is computed from, and a value that nothing else reads."""

    def __init__(self, form=Output):
        super().__init__()
        self.inner, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.unread, self.form = nn.Linear(WIDTH, CLASSES), form

    def forward(self, x, y):
        h = self.inner(x).relu()
        logits = self.out(h)
        return self.form(nn.functional.cross_entropy(logits, y), logits, self.unread(h))


def as_dict(loss, logits, hidden):
    return {"error": loss, "logits": logits, "hidden": hidden}


def as_tuple(*parts):
    return parts


def gradients_of(module):
    found = {name: each.grad for name, each in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize(
    ("form", "loss", "part"),
    [
        (Output, None, "loss"),
        (Output, "loss", "loss"),
        (as_dict, "error", "error"),
        (as_tuple, lambda out: out[0], 0),
        (as_dict, lambda out: out["error"], "error"),
    ],
)
def test_only_the_loss_is_differentiated(form, loss, part):
    """Gradients are those of eager torch for the loss alone."""
    module = Head(form)

    def part_of(out):
        return getattr(out, part) if form is Output else out[part]

    part_of(module(X, Y)).backward()
    wanted = gradients_of(module)
    step = graphc.torch.plan(module, (X, Y), "knee", loss=loss)
    found = step(X, Y)
    leaves = list(found.values()) if isinstance(found, dict) else list(found)
    assert [each.requires_grad for each in leaves] == [True, False, False]
    torch.testing.assert_close(leaves[1], module(X, Y)[1 if form is not as_dict else "logits"])
    part_of(found).backward()
    torch.testing.assert_close(gradients_of(module), wanted)
    assert wanted["unread.weight"] is None
    assert step.verify().same_bits


def test_peaks_fall_with_what_is_differentiated_and_returned():
    def least(**options):
        step = graphc.torch.plan(Head(), (X, Y), **options)
        assert step.verify().same_bits
        return step.report.least_bytes

    everything = least(loss=lambda out: out)
    detached = least()
    only_loss = least(return_outputs=False)
    # The gradients of both outputs need not exist, and neither output outlives its last use.
    assert everything - detached >= 2 * LOGITS_BYTES
    assert detached - only_loss >= LOGITS_BYTES


def test_what_nothing_reads_is_not_computed():
    def nodes(**options):
        step = graphc.torch.plan(Head(), (X, Y), **options)
        return [str(node.target) for node in step.plans[-1].forward.graph.nodes]

    assert nodes().count("aten.addmm.default") == 3
    assert nodes(return_outputs=False).count("aten.addmm.default") == 2


def test_a_loss_may_be_computed_if_only_the_loss_is_returned():
    module = Head()

    def loss(out):
        return out.loss + out.hidden.square().mean()

    step = graphc.torch.plan(module, (X, Y), "knee", loss=loss, return_outputs=False)
    found, wanted = step(X, Y), loss(module(X, Y))
    torch.testing.assert_close(found, wanted)
    found.backward()
    own = gradients_of(module)
    wanted.backward()
    torch.testing.assert_close(own, gradients_of(module))
    with pytest.raises(OptionError, match=r"not in the module's output.* return_outputs=False"):
        graphc.torch.plan(module, (X, Y), loss=loss)


def test_the_frontier_is_that_of_the_plans():
    options = {"return_outputs": False}
    step = graphc.torch.plan(Head(), (X, Y), "knee", **options)
    points = list(graphc.torch.frontier(Head(), (X, Y), **options))
    assert points == list(step.report.frontier)


def test_an_object_that_torch_cannot_flatten_is_returned_as_it_is():
    class Plain:
        def __init__(self, loss, logits, hidden):
            self.loss, self.logits = loss, logits

    module = Head(Plain)
    step = graphc.torch.plan(module, (X, Y), "knee")
    found = step(X, Y)
    assert torch.equal(found.loss, module(X, Y).loss)
    assert found.logits.requires_grad


def test_an_evaluation_needs_no_loss():
    class Sometimes(nn.Linear):
        def forward(self, x, y=None):
            found = super().forward(x)
            return Output(None if y is None else (found - y).square().mean(), found, None)

    step = graphc.torch.plan(
        Sometimes(4, 4), (torch.ones(2, 4), torch.ones(2, 4)), "knee", loss="loss"
    )
    with torch.no_grad():
        assert step(torch.ones(2, 4)).loss is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"loss": "los"}, "loss selects no tensor of the module's output; pass the name"),
        ({"loss": lambda out: 1.0}, "loss selects no tensor"),
        ({"loss": 3}, "loss must be a name or a function of outputs, got 3"),
        ({"return_outputs": 1}, "return_outputs must be True or False, got 1"),
    ],
)
def test_wrong_options(options, told):
    with pytest.raises(OptionError, match=told):
        graphc.torch.plan(Head(), (X, Y), **options)


def test_no_loss_to_return():
    with pytest.raises(OptionError, match="loss selects no tensor"):
        graphc.torch.plan(Head(as_tuple), (X, Y), return_outputs=False)
