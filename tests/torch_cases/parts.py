"""Modules that each have one thing of which a plan must take care."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def layers(count=4, width=64):
    """Linear layers, each with a tanh."""
    return nn.Sequential(*[m for _ in range(count) for m in (nn.Linear(width, width), nn.Tanh())])


class Two(nn.Module):
    """Two stacks of layers; subclasses say what happens between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers(), layers()

    def between(self, x):
        return x

    def forward(self, x):
        return self.second(self.between(self.first(x))).square().mean()


class Autocast(Two):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Frozen(Two):
    def __init__(self):
        super().__init__()
        for parameter in (*self.first[0].parameters(), *self.second[2].parameters()):
            parameter.requires_grad_(False)


class Tied(nn.Module):
    """An embedding whose table is the weight of the output layer, too."""

    def __init__(self):
        super().__init__()
        self.embed, self.inner = nn.Embedding(100, 64), layers()
        self.output = nn.Linear(64, 100, bias=False)
        self.output.weight = self.embed.weight

    def forward(self, tokens, targets):
        return functional.cross_entropy(self.output(self.inner(self.embed(tokens))), targets)


class Outputs(Two):
    """A dict with two losses, an intermediate, an input and what is no tensor."""

    def forward(self, x):
        hidden = self.first(x)
        result = self.second(hidden)
        losses = {"mean": result.mean(), "most": result.amax()}
        return {"losses": losses, "hidden": hidden, "more": (x, 3, None)}


class Nested(Two):
    def forward(self, batch, *, scale, mask=None):
        hidden = self.first(batch["x"]) * scale
        return self.second(hidden - batch["more"][0]).square().mean() * batch["more"][1]


class Checkpointed(Two):
    """The user's own checkpoint, with dropout in it."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant, self.drop = use_reentrant, nn.Dropout(0.2)

    def part(self, x):
        return self.drop(self.first(x))

    def forward(self, x):
        return self.second(checkpoint(self.part, x, use_reentrant=self.use_reentrant)).mean()


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


class OwnFunction(Two):
    def between(self, x):
        return Cube.apply(x)


class ByScaled(torch.autograd.Function):
    """A product with 8-bit weights, which the backward pass dequantizes."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ (weight.to(x.dtype) * 0.01)

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return gradient @ (weight.to(gradient.dtype) * 0.01).t(), None


class Dequantized(nn.Module):
    def __init__(self, count=6, width=512):
        super().__init__()
        self.first = nn.Linear(width, width)
        shape = (count, width, width)
        self.register_buffer("weights", torch.randint(-127, 127, shape, dtype=torch.int8))

    def forward(self, x):
        x = self.first(x)
        for weight in self.weights:
            x = ByScaled.apply(x, weight)
        return x.square().mean()


class Recurrent(nn.Module):
    def __init__(self, cells, **options):
        super().__init__()
        self.cells = cells(32, 32, **options)
        self.output = nn.LazyLinear(32)

    def forward(self, x):
        return self.output(self.cells(x)[0]).square().mean()


class Slices(nn.Module):
    """In-place ops on slices of views, layer after layer."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = torch.empty_like(y)
            half = y.shape[1] // 2
            x[:, :half] = y[:, :half].tanh()
            x[:, half:] = y[:, half:].sigmoid()
            x[:, half:].mul_(0.5)
            x.view(2, -1, y.shape[1])[0].add_(1)
            x[::2].relu_()
        return x.mean()


class OneStorage(Two):
    """Two parameters in one storage, which counts once."""

    def __init__(self):
        super().__init__()
        flat = torch.randn(2 * 64 * 64)
        self.left, self.right = (nn.Parameter(each.view(64, 64)) for each in flat.chunk(2))

    def between(self, x):
        return x @ self.left + x @ self.right


class Averaged(Two):
    """A buffer that no state dict has follows the mean of what passes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(64), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def between(self, x):
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
            self.count += 1
        return x - self.average


class ChangedInput(Two):
    def forward(self, x):
        return super().forward(x.mul_(2))


def convolutions(*more):
    """Convolutions with norms, and what else."""
    return nn.Sequential(
        *[
            part
            for _ in range(4)
            for part in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), *(m() for m in more))
        ]
    )
