"""Plans for several sizes, made before the first step: options, padding, and unplanned calls."""

import copy
import warnings

import pytest

import graphc
from graphc.errors import BudgetError, OptionError, TorchError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from graphc.torch.budget.sizes.options import Axis, powers_of_two  # noqa: E402

WIDTH, CLASSES = 8, 5


class Labeled(nn.Module):
    """A causal mean of embedded tokens, and the loss of labels that are not -100."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(WIDTH, CLASSES)

    def forward(self, tokens, labels=None):
        rows = self.head(self.body(self.embed(tokens).cumsum(1)))
        if labels is None:
            return rows
        return nn.functional.cross_entropy(rows.flatten(0, 1), labels.flatten())


SHARED = {("tokens", "labels"): {1: (8, 16, 32)}}
PAD = {"tokens": 0, "labels": -100}


def batch(length, rows=3):
    return torch.randint(CLASSES, (rows, length)), torch.randint(CLASSES, (rows, length))


def stepped(sizes=None, example=None, **options):
    torch.manual_seed(0)
    module = Labeled().double()
    made = {"sizes": SHARED if sizes is None and "dynamic" not in options else sizes, "pad": PAD}
    return graphc.torch.plan(module, example or batch(10), **{**made, **options})


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return [loss.detach(), *(each.grad for each in module.parameters())]


def traces():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def names(step):
    return [row.size for row in step.report.sizes]


def lengths(step):
    return [int(name.rpartition("=")[2]) for name in names(step)]


@pytest.fixture(scope="class")
def counted():
    """Return a planned step, and how many graphs were traced for it."""
    torch.compiler.reset()
    before = traces()
    return stepped(), traces() - before


class TestOneStep:
    """Checks on one planned step, which they leave as it was."""

    @pytest.fixture(autouse=True)
    def compiled_anew(self):
        """Keep what is compiled, unlike for other tests."""
        torch.manual_seed(0)

    @pytest.fixture
    def step(self, counted):
        return counted[0]

    def test_padded_steps_equal_unpadded_ones_and_plan_nothing(self, step):
        before, plans = traces(), len(step.plans)
        for length in (8, 3, 9, 16, 30, 32):
            tokens, labels = batch(length)
            found = gradients(step.module, step(tokens, labels))
            wanted = gradients(step.module, step.module(tokens, labels))
            torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)
        assert (traces(), len(step.plans)) == (before, plans)

    def test_slices_and_one_tensor_given_twice_plan_nothing(self, step):
        plans, data = len(step.plans), torch.randint(CLASSES, (9, 20))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for tokens in data[3:6, :16], data[6:9, :-4], data[:3, ::2], data.T[:16, :3].T:
                torch.testing.assert_close(step(tokens, tokens), step.module(tokens, tokens))
        assert len(step.plans) == plans

    def test_the_report_lists_the_sizes(self, step):
        assert names(step) == [f"tokens,labels[1]={length}" for length in (8, 16, 32)]
        rows = step.report.sizes
        assert step.report.peak_bytes == max(row.peak_bytes for row in rows) == rows[-1].peak_bytes
        assert [row.report.peak_bytes for row in rows] == [row.peak_bytes for row in rows]
        assert all(row.planning_seconds > 0 for row in rows)
        text = str(step.report)
        assert "planned peak  extra time    planning" in text
        assert "tokens,labels[1]=16" in text
        assert step.report.json["sizes"][0]["size"] == "tokens,labels[1]=8"
        step(*batch(5))
        assert step.report.sizes == rows

    def test_further_sizes_need_no_trace(self, counted):
        assert counted[1] == 1

    def test_arguments_before_padding_are_counted(self, step):
        held = step.report.sizes[-1].report.held
        assert held.unpadded == held.inputs == 2 * 3 * 32 * 8
        assert graphc.torch.plan(Labeled(), batch(4), "knee").report.held.unpadded == 0

    @pytest.mark.parametrize(
        ("call", "told"),
        [
            (batch(33), r"no planned size holds a call with tokens,labels\[1\]=33; the sizes are"),
            (batch(16, rows=2), r"args\[0\] is int64 \[2, 16\] .*but int64 \[3, 16\] "),
            (
                (batch(16)[0].int(), batch(16)[1]),
                r"args\[0\] is int32 .*only the planned dimensions",
            ),
            ((batch(16)[0], batch(15)[1]), "share .* but have lengths 16 and 15"),
            ((batch(16)[0],), "the call has no labels"),
            (
                (batch(16)[0].tolist(), batch(16)[1]),
                "tokens has type list in this call, but is a te",
            ),
            (
                (batch(16)[0][0], batch(16)[1]),
                "tokens has 1 dimensions in this call, but is a tensor",
            ),
        ],
    )
    def test_unplanned_calls_are_refused(self, step, call, told):
        with pytest.raises(TorchError, match=told):
            step(*call)

    def test_without_gradients_nothing_is_padded_or_planned(self, step):
        plans = len(step.plans)
        with torch.no_grad():
            assert step(batch(50)[0]).shape == (3, 50, CLASSES)
        assert len(step.plans) == plans

    def test_verify_pads_the_call(self, step):
        given = batch(20)
        assert step.verify(*given).same_bits
        assert step.verify().planned_peak_bytes == step.report.peak_bytes


def test_the_budget_holds_for_each_size():
    whole = stepped(max_extra_time=0.0).report.peak_bytes
    torch.compiler.reset()
    step = stepped(budget=int(0.9 * whole))
    assert all(row.peak_bytes <= 0.9 * whole for row in step.report.sizes)
    assert step.report.sizes[0].extra_time == 0 < step.report.sizes[-1].extra_time
    found = step.verify(*batch(20))
    assert found.same_bits
    assert found.measured_peak_bytes <= 0.9 * whole
    torch.compiler.reset()
    with pytest.raises(BudgetError, match=r"^tokens,labels\[1\]=\d+: no plan within"):
        stepped(budget=int(0.3 * whole))


def test_all_combinations_and_listed_sizes():
    step = stepped({"tokens": {0: (2, 3), 1: (4, 8)}}, (batch(4)[0],), pad=None)
    assert sorted(names(step)) == [f"tokens[0]={n} tokens[1]={m}" for n in (2, 3) for m in (4, 8)]
    torch.compiler.reset()
    listed = [{"tokens": {0: n, 1: m}} for n, m in ((4, 2), (2, 8))]
    assert names(stepped(listed, (batch(4)[0],), pad=None)) == [
        "tokens[0]=4 tokens[1]=2",
        "tokens[0]=2 tokens[1]=8",
    ]


def test_without_a_number_only_exact_sizes_run():
    step = stepped({"tokens": {1: (8, 16)}}, (batch(4)[0],), pad=None)
    assert step(batch(16)[0]).shape == (3, 16, CLASSES)
    match = (
        r"tokens\[1\]=7 without padding.*give a number for tokens to pad, as in pad={'tokens': 0}"
    )
    with pytest.raises(TorchError, match=match):
        step(batch(7)[0])


def test_a_range_gives_powers_of_two():
    axis = Axis(("x",), (1,))
    assert powers_of_two(axis, (64, 1024)) == (64, 128, 256, 512, 1024)
    assert powers_of_two(axis, (5, 20)) == (8, 16, 20)
    assert powers_of_two(axis, (1, 1)) == (1,)
    assert powers_of_two(axis, (9, 12)) == (12,)
    assert lengths(stepped(dynamic={("tokens", "labels"): {1: (6, 20)}})) == [8, 16, 20]


def test_sizes_for_counts_of_lengths():
    counts = {4: 1000, 5: 1000, 30: 1000, 200: 1}
    step = stepped(dynamic={("tokens", "labels"): {1: counts}}, max_sizes=3)
    assert lengths(step) in ([4, 30, 200], [5, 30, 200])
    plans = len(step.plans)
    for length in (4, 30, 100):
        step(*batch(length))
    assert len(step.plans) == plans


def test_a_function_pads():
    seen = []

    def pad(args, kwargs, size):
        (length,) = size["tokens"].values()
        seen.append(length)
        rest = max(0, length - args[0].shape[1])
        tokens, labels = (
            nn.functional.pad(each, (0, rest), value=number)
            for each, number in zip(args, (0, -100), strict=True)
        )
        return (tokens, labels), kwargs

    step = stepped({"tokens": {1: (8, 16)}}, batch(4), pad=pad)
    plans = len(step.plans)
    tokens, labels = batch(11)
    seen.clear()
    torch.testing.assert_close(step(tokens, labels), step.module(tokens, labels))
    assert set(seen) == {16}
    assert len(step.plans) == plans
    with pytest.raises(OptionError, match=r"pad must pad tokens to tokens\[1\]=8, .* \[3, 9\]"):
        stepped({"tokens": {1: (8, 16)}}, batch(9), pad=pad)
    with pytest.raises(OptionError, match="pad must return a tuple"):
        stepped({"tokens": {1: (8, 16)}}, batch(4), pad=lambda args, kwargs, size: args)


def test_a_target_varies_with_the_arguments():
    def loss_fn(rows, target):
        return nn.functional.cross_entropy(rows.flatten(0, 1), target.flatten())

    sizes = {("tokens", "target"): {1: (8, 16)}}
    step = stepped(sizes, pad={"tokens": 0, "target": -100}, loss_fn=loss_fn)
    tokens, target = batch(9)
    wanted = loss_fn(step.module(tokens), target)
    torch.testing.assert_close(step(tokens, target), wanted, rtol=1e-12, atol=0)


def test_arguments_are_passed_as_in_the_example():
    step = stepped()
    tokens, labels = batch(8)
    with pytest.raises(TorchError, match="no labels that is passed by position"):
        step(tokens, labels=labels)
    torch.compiler.reset()
    step = graphc.torch.plan(
        Labeled(), (), "knee", kwargs={"tokens": tokens, "labels": labels}, sizes=SHARED, pad=PAD
    )
    plans = len(step.plans)
    step(labels=labels[:, :5], tokens=tokens[:, :5])
    assert len(step.plans) == plans
    with pytest.raises(TorchError, match="no tokens that is passed by keyword"):
        step(tokens, labels=labels)


def test_unplanned_calls_may_be_planned_with_a_warning():
    step = stepped(unplanned="plan")
    plans = len(step.plans)
    for call in batch(40), batch(16, rows=2):
        with pytest.warns(UserWarning, match="this call is planned now, because") as told:
            found = step(*call)
        assert told[0].filename == __file__
        torch.testing.assert_close(found, step.module(*call))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(*call)
    assert len(step.plans) == plans + 2
    assert len(step.report.sizes) == 3


def test_planned_sizes_keep_their_plans_after_unplanned_calls():
    step = stepped(unplanned="plan")
    for rows in (2, 1, 5, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            step(*batch(16, rows=rows))
        plans = len(step.plans)
        for length in (8, 9, 32):
            step(*batch(length))
        assert len(step.plans) == plans


def test_a_copy_plans_all_sizes_at_its_first_call():
    copied = copy.deepcopy(stepped())
    assert not copied.plans
    given = batch(5)
    copied(*given)
    assert lengths(copied) == [8, 16, 32]
    assert copied.verify().same_bits


def test_verify_uses_the_example_directly_after_planning():
    given = batch(10)
    assert stepped(example=given).verify().same_bits


class Mean(nn.Module):
    """A mean over all positions, after noise in training and a batch norm."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop, self.layer = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.drop(self.norm(x.transpose(1, 2)).transpose(1, 2))).exp().mean()


def test_padding_that_changes_the_loss_is_refused():
    module = Mean()
    module.drop.eval()
    x, state = torch.randn(2, 10, 4), copy.deepcopy(module.state_dict())
    drawn = torch.get_rng_state()
    with pytest.raises(TorchError, match=r"loss [\d.]+, and [\d.]+ if it is padded to x\[1\]=16"):
        graphc.torch.plan(module, (x,), sizes={"x": {1: (8, 16)}}, pad={"x": 0})
    torch.testing.assert_close(module.state_dict(), state, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [each.training for each in module.modules()] == [True, True, False, True]
    assert all(each.grad is None for each in module.parameters())
    for length in (4, 16):  # shorter than all sizes, and as long as the only one
        with pytest.raises(TorchError, match="padding changes the loss"):
            graphc.torch.plan(module, (x[:, :length],), sizes={"x": {1: (16,)}}, pad={"x": 0})
    with pytest.raises(TorchError, match="padding changes the loss"):
        stepped(pad={"tokens": 0, "labels": 0})
    with pytest.raises(TorchError, match=r"raises IndexError.* for the example padded"):
        stepped(pad={"tokens": CLASSES, "labels": -100})


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)]
)
def test_rounding_does_not_count_as_a_change(dtype):
    torch.manual_seed(1)
    step = graphc.torch.plan(Labeled().to(dtype), batch(10), "knee", sizes=SHARED, pad=PAD)
    assert len(step.report.sizes) == 3


def test_an_input_without_padding_has_exact_sizes():
    step = stepped(pad={"tokens": None, "labels": -100})
    step(*batch(16))
    with pytest.raises(TorchError, match="give a number for tokens to pad"):
        step(*batch(15))


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (lambda args: args[:1], "must return the tensor labels .*got NoneType"),
        (lambda args: (args[0], args[1].tolist()), "must return the tensor labels .*got list"),
        (lambda args: (args[0], args[1][:, :3]), r"pad must pad labels to .*shape \[3, 3\]"),
    ],
)
def test_wrong_results_of_a_pad_function_are_refused(returned, told):
    with pytest.raises(OptionError, match=told):
        stepped(
            {("tokens", "labels"): {1: (8,)}}, batch(8),
            pad=lambda args, kwargs, size: (returned(args), kwargs),
        )  # fmt: skip


def test_numbers_of_pad_fit_the_elements():
    for number in (0.5, 1e30, float("inf")):
        with pytest.raises(OptionError, match=r"pad must give an integer from -9223.* int64, got"):
            stepped(pad={"tokens": number, "labels": -100})

    class Masked(nn.Linear):
        def forward(self, x, mask):
            return super().forward(x).masked_fill(~mask[..., None], 0).sum() / mask.sum()

    given = torch.randn(2, 10, 4), torch.ones(2, 10, dtype=torch.bool)
    options = {"sizes": {("x", "mask"): {1: (8, 16)}}}
    with pytest.raises(OptionError, match="an integer from 0 to 1 for mask, which is bool, got 2"):
        graphc.torch.plan(Masked(4, 4), given, pad={"x": 0, "mask": 2}, **options)
    step = graphc.torch.plan(Masked(4, 4), given, pad={"x": 0, "mask": False}, **options)
    torch.testing.assert_close(step(*given), step.module(*given))


def test_a_size_that_is_read_as_a_number_is_traced_for_itself():
    class Reads(nn.Linear):
        def forward(self, x):
            return super().forward(x).mean() * (2 if x.shape[1] == 16 else 3)

    x = torch.randn(2, 10, 4)
    step = graphc.torch.plan(Reads(4, 4), (x,), "knee", sizes={"x": {1: (8, 16, 24)}})
    plans = len(step.plans)
    for length in (16, 8, 24):
        x = torch.randn(2, length, 4)
        torch.testing.assert_close(step(x), step.module(x))
    assert len(step.plans) == plans


def test_arguments_that_require_gradients_are_not_padded():
    step = graphc.torch.plan(
        nn.Linear(4, 4), (torch.randn(2, 8, 4, requires_grad=True),), "knee", pad={"input": 0.0},
        sizes={"input": {1: (8, 16)}},
    )  # fmt: skip
    x = torch.randn(2, 16, 4, requires_grad=True)
    step(x).sum().backward()
    assert x.grad is not None
    with pytest.raises(TorchError, match="a gradient does not pass through padding"):
        step(torch.randn(2, 12, 4, requires_grad=True))


def test_sizes_are_planned_without_data():
    step = stepped(device="h100")
    assert lengths(step) == [8, 16, 32]
    with pytest.raises(TorchError, match="cannot run"):
        step(*batch(8))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sizes": {"token": {1: (8,)}}}, r"token\[1\] names no argument.*mean tokens"),
        ({"sizes": {"tokens": {2: (8,)}}}, r"no dimension 2; dimensions are 0 to 1"),
        ({"sizes": {"tokens": (8, 16)}}, "must map each input to its dimensions"),
        ({"sizes": {"tokens": {1: 8}}}, r"must map a dimension to its lengths, .*got 8"),
        ({"sizes": {"tokens": {1: ()}}}, "must map a dimension to its lengths"),
        ({"sizes": {"tokens": {1: (0,)}}}, r"a length of tokens\[1\] must be an integer of at le"),
        ({"sizes": {"tokens": {1: (8, 8)}}}, r"contains tokens\[1\]=8 twice"),
        ({"sizes": {"tokens": {"1": (8,)}}}, "a dimension of tokens must be an integer"),
        ({"sizes": {1: {1: (8,)}}}, "must name inputs by their names"),
        ({"sizes": {"tokens": {1: (8,)}, ("labels", "tokens"): {1: (8,)}}}, "each dimension once"),
        ({"sizes": {"tokens": {1: (8,), -1: (8,)}}}, "dimension 1 of tokens is named twice"),
        ({"sizes": []}, "must map inputs to lengths"),
        ({"sizes": 8}, "must map inputs to lengths"),
        ({"sizes": [{"tokens": {1: 8}}, {"labels": {1: 8}}]}, "name the same inputs"),
        ({"sizes": {("tokens", "labels"): {(0, 1): (8,)}}}, "must have one length, .*has tokens"),
        ({"dynamic": {"tokens": {1: 64}}}, "least and greatest length"),
        ({"dynamic": {"tokens": {1: (64, 8)}}}, r"greatest length of tokens\[1\] must be .* 64"),
        ({"dynamic": {"tokens": {1: {8: 1}}, "labels": {1: (8, 9)}}}, "for one dimension only"),
        ({"dynamic": {"tokens": {1: {8: -1}}}}, "a count must be an integer"),
        ({"dynamic": {"tokens": {1: (4, 8)}}, "sizes": SHARED}, "either sizes or dynamic"),
        ({"max_sizes": 0, "sizes": SHARED}, "max_sizes must be an integer"),
        ({"max_sizes": 3, "sizes": SHARED}, "max_sizes applies to counts of lengths only"),
        ({"max_sizes": 3, "dynamic": {"tokens": {1: (4, 8)}}}, "max_sizes applies to counts"),
        ({"max_sizes": 3}, "max_sizes applies to planned sizes"),
        ({"pad": {"tokens": 0}}, "pad applies to planned sizes"),
        ({"unplanned": "plan"}, "unplanned applies to planned sizes"),
        ({"unplanned": "ignore", "sizes": SHARED}, "must be 'raise' or 'plan'"),
        ({"pad": 0, "sizes": SHARED}, "pad must map names of inputs to numbers"),
        ({"pad": {"tokens": "0"}, "sizes": SHARED}, "the number for 'tokens' of pad"),
        ({"pad": {"label": 0}, "sizes": SHARED}, "pad names 'label', which does not vary; did"),
    ],
)
def test_wrong_options_are_refused(options, told):
    with pytest.raises(OptionError, match=told):
        graphc.torch.plan(Labeled(), batch(10), **options)
