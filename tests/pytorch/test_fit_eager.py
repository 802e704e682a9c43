"""Predicted peaks of eager training against measured ones, and their kinds."""

from itertools import pairwise

import pytest

from graphc.devices.device import find_device
from graphc.errors import TorchError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402
from graphc.torch.fit.eager import eager_peak  # noqa: E402


def mlp():
    widths = (64, 256, 256, 32)
    layers = [
        layer
        for a, b in pairwise(widths)
        for layer in (torch.nn.Linear(a, b), torch.nn.GELU(), torch.nn.LayerNorm(b))
    ]
    return torch.nn.Sequential(*layers), (torch.randn(512, 64), torch.randn(512, 32))


def conv():
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
    )
    return net, (torch.randn(16, 3, 64, 64), torch.randn(16, 32))


def depthwise():
    """Convolutions of groups, whose operands oneDNN pads to blocks, on small and wide maps."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(64, 64, 3, padding=1, groups=64),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 64, 7, padding=3, groups=64, stride=4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(64, 64, 3, padding=1, groups=64),
        torch.nn.Flatten(),
    ).to(memory_format=torch.channels_last)
    x = torch.randn(4, 64, 8, 8).to(memory_format=torch.channels_last)
    return net, (x, torch.randn(4, 256))


class Slices(torch.nn.Module):
    """A state that is read many times: gradients of its slices are added in one buffer."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 512)

    def forward(self, x):
        y = self.inner(x)
        return sum(y[:, k : k + 32] for k in range(0, 512, 32))


class Formulas(torch.nn.Module):
    """Sums of gradients that need new bytes: of one gradient with itself, and in a formula."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 512)

    def forward(self, x):
        y = self.inner(x)
        variance, mean = torch.var_mean(y + y, dim=1, keepdim=True)
        z = y.tanh()
        return (z * z + variance + mean)[:, :32]


def formulas():
    return Formulas(), (torch.randn(512, 64), torch.randn(512, 32))


def slices():
    return Slices(), (torch.randn(512, 64), torch.randn(512, 32))


def adamw(module):
    return torch.optim.AdamW(module.parameters())


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


LOSS = torch.nn.functional.mse_loss
LIBRARIES = (32 + 32 + 1) * 2**20
"""Workspaces on Hopper by torch's documentation: cuBLAS's in two threads, and cuBLASLt's."""


def measured(module, args, make, autocast, passes=1):
    """The peak of the second step of a module."""
    optimizer = make(module)

    def step():
        for _ in range(passes):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = LOSS(module(args[0]), args[1])
            loss.backward()
            del loss
        optimizer.step()

    step()
    optimizer.zero_grad()
    states = [each for state in optimizer.state.values() for each in state.values()]
    return measured_peak(step, [*module.parameters(), *module.buffers(), *args, *states])


@pytest.mark.parametrize("make", [sgd, adamw])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("model", [mlp, conv, depthwise, slices, formulas])
def test_the_peak_is_the_measured_one(model, autocast, make):
    module, args = model()
    found = eager_peak(
        (module, LOSS, args, {}), make, autocast=torch.bfloat16 if autocast else None
    )
    peak = measured(module, args, make, autocast)
    assert found.peak_bytes == pytest.approx(peak, rel=0.002)
    assert sum(found.by_kind_bytes.values()) == found.peak_bytes


ROWS = torch.arange(256).flip(0)
INDEXED = {
    "gather": lambda y: y.gather(1, ROWS[:, None]),
    "rows": lambda y: y[ROWS[:8]],
    "pairs": lambda y: y[ROWS, ROWS],
    "index_select": lambda y: y.index_select(0, ROWS[:8]),
    "embedding": lambda y: torch.nn.functional.embedding(ROWS[:8], y),
    "take": lambda y: y.take(ROWS),
    "take_along_dim": lambda y: torch.take_along_dim(y, ROWS[:, None], 1),
    "topk": lambda y: y.topk(3, 1).values,
    "max": lambda y: y.max(1).values,
    "median": lambda y: y.median(1).values,
    "cummax": lambda y: y.cummax(1).values,
    "sort": lambda y: y.sort(1).values,
    "trace": torch.trace,
    "diagonal": torch.diagonal,
    "column": lambda y: y[:, 3],
    "mean": lambda y: torch.zeros(256, 256).scatter_reduce(
        0, ROWS[:, None].repeat(1, 256), y, "mean"
    ),
}
"""Their gradients are written into zeros."""


class Indexed(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.inner, self.read = torch.nn.Linear(16, 256), read

    def forward(self, x):
        return self.read(self.inner(x)).square().mean()


@pytest.mark.parametrize("name", INDEXED)
def test_gradients_of_what_is_read_are_written_once(name):
    module, args = Indexed(INDEXED[name]), (torch.randn(256, 16), torch.tensor(0.0))
    found = eager_peak((module, LOSS, args, {}), sgd)
    assert found.peak_bytes == pytest.approx(measured(module, args, sgd, False), rel=0.03)


def test_gradients_of_a_micro_batch_count_in_the_next_forward_pass():
    module, args = mlp()
    found = eager_peak((module, LOSS, args, {}), adamw, is_accumulating=True)
    assert found.peak_bytes == pytest.approx(measured(module, args, adamw, False, 2), rel=0.01)


def test_kinds_at_the_peak():
    module, args = mlp()
    parameters = sum(p.nbytes for p in module.parameters())
    kinds = eager_peak((module, LOSS, args, {}), adamw).by_kind_bytes
    assert kinds["parameters"] == parameters
    assert kinds["inputs"] == sum(each.nbytes for each in args)
    steps = 4 * len(list(module.parameters()))
    assert kinds["optimizer states"] == 2 * parameters + steps
    assert kinds["activations"] > 512 * 256 * 4 * 2


def test_the_trace_frees_what_it_allocates():
    module, args = mlp()
    trace = eager_peak((module, LOSS, args, {}), adamw).trace
    live = {}
    for key, size in trace:
        if size > 0:
            assert key not in live
            live[key] = size
        else:
            assert live.pop(key) == -size


def test_an_optimizer_of_a_gpu_updates_all_parameters_at_once():
    module, args = mlp()
    parameters = sum(p.nbytes for p in module.parameters())
    inputs = sum(each.nbytes for each in args)
    found = eager_peak((module, LOSS, args, {}), adamw, device=find_device("h100"))
    # Parameters, gradients, two states, and the roots of the second state.
    assert found.update_bytes == pytest.approx(5 * parameters + inputs + LIBRARIES, rel=1e-3)


def test_dropout_on_a_gpu_saves_a_mask_of_bytes():
    module = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5))
    call = (module, LOSS, (torch.randn(4096, 64), torch.randn(4096, 64)), {})
    peaks = [eager_peak(call, device=find_device(name)).peak_bytes for name in ("cpu", "h100")]
    assert peaks[0] + LIBRARIES - peaks[1] >= 4096 * 64 * 3


def test_the_time_is_that_of_the_products():
    with torch.device("meta"):
        module, args = torch.nn.Linear(4096, 4096, bias=False), (torch.empty(4096, 4096),)
    args = (args[0], args[0])
    device = find_device("h100")
    seconds = eager_peak((module, LOSS, args, {}), device=device).seconds
    products = 2 * 2 * 4096**3 / device.flops_per_second
    assert products < seconds < 1.2 * products


def test_a_step_that_reads_values_is_refused():
    class Reads(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(TorchError, match=r"Reads fails on tensors without data.*DataDependent"):
        eager_peak((Reads(4, 4), LOSS, (torch.ones(4, 4), torch.ones(4, 4)), {}))


class Attention(torch.nn.Module):
    """Attention with a learned or no mask, and fewer heads of keys."""

    def __init__(self, heads, key_heads, learned):
        super().__init__()
        self.heads, self.key_heads = heads, key_heads
        self.inner = torch.nn.Linear(64, (heads + 2 * key_heads) * 16)
        self.mask = torch.nn.Parameter(torch.zeros(heads, 128, 128)) if learned else None

    def forward(self, x):
        parts = self.inner(x).unflatten(-1, (-1, 16)).transpose(1, 2)
        query, key, value = parts.split((self.heads, self.key_heads, self.key_heads), 1)
        mask = None if self.mask is None else self.mask[None]
        found = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, enable_gqa=self.heads != self.key_heads
        )
        return found.transpose(1, 2).flatten(2)


def kept(module, x):
    """Bytes that a forward pass keeps on an H100 for the backward pass, in bfloat16."""
    target = torch.zeros_like(module(x))
    call = (module, LOSS, (x, target), {})
    found = eager_peak(call, device=find_device("h100"), autocast=torch.bfloat16)
    return found.by_kind_bytes["activations"] + found.by_kind_bytes["logits and loss"]


def test_flash_attention_does_not_repeat_keys():
    x = torch.randn(8, 128, 64)
    whole, shared = (kept(Attention(16, heads, False), x) for heads in (16, 2))
    # Queries, keys and values once by the linear layer, and once for autograd.
    keys = 2 * (16 - 2) * 8 * 128 * 16 * 2
    assert whole - shared >= keys


def test_a_learned_mask_keeps_probabilities_in_float32():
    x = torch.randn(8, 128, 64)
    without, learned = (kept(Attention(16, 16, mask), x) for mask in (False, True))
    assert learned - without >= 8 * 16 * 128 * 128 * 4


def test_the_gradient_of_a_cross_entropy_of_halves_has_two_bytes():
    """On a GPU, softmax reads 16-bit numbers; a copy in float32 would be kept on a CPU."""
    module, classes = torch.nn.Linear(16, 10_000), 10_000
    call = (module, torch.nn.functional.cross_entropy,
            (torch.randn(256, 16), torch.zeros(256, dtype=torch.long)), {})  # fmt: skip
    found = eager_peak(call, device=find_device("h100"), autocast=torch.bfloat16)
    logits = 256 * classes
    rest = found.peak_bytes - LIBRARIES - 4 * classes * 17
    assert rest == pytest.approx((4 + 4 + 2) * logits, rel=0.05)


def test_activations_are_recomputed_under_the_rules_of_a_gpu():
    class Recomputed(Attention):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    x = torch.randn(4, 128, 64)
    networks = [
        torch.nn.Sequential(*(make(4, 4, False) for _ in range(4)))
        for make in (Recomputed, Attention)
    ]
    assert kept(networks[0], x) < 0.7 * (kept(networks[1], x) - LIBRARIES) + LIBRARIES


def test_no_layer_is_left_out_at_random():
    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                if torch.rand([]) < 0.9:
                    continue
                x = layer(x)
            return x

    call = (Layers(), LOSS, (torch.randn(512, 64), torch.randn(512, 64)), {})
    assert eager_peak(call).by_kind_bytes["activations"] >= 3 * 512 * 64 * 4


def test_the_second_step_finds_states_and_no_gradients():
    module, args = mlp()
    parameters = sum(p.nbytes for p in module.parameters())
    trace = eager_peak((module, LOSS, args, {}), adamw).trace
    live = sum(size for _, size in trace)
    steps = 4 * len(list(module.parameters()))
    # At the end: parameters, gradients and two states.
    assert live == 4 * parameters + steps + sum(each.nbytes for each in args)
