"""A small transformer of torch, trained on Python's own documentation under two thirds of its peak.

First without a plan on the language reference, then on graphc's documents by a plan: the numbers
are the same to the bit, so the plan may come at any time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

import graphc
from graphc.torch.budget.trace.measure import measured_peak

WIDTH, HEADS, LAYERS, STEPS, BATCH = 64, 4, 4, 128, 16
TAUGHT, TUNED = 40, 20
REFERENCE = "\n".join(text for _, text in sorted(topics.items()))
DOCUMENTS = "\n".join(
    path.read_text() for path in sorted((Path(__file__).parents[1] / "docs").glob("*.md"))
)


class Transformer(nn.Module):
    """Bytes in, the cross entropy of the next bytes out."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(256, WIDTH), nn.Embedding(STEPS, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH,
            HEADS,
            4 * WIDTH,
            dropout=0.1,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(STEPS))

    def forward(self, text: Tensor) -> Tensor:
        """The loss of text (batch, STEPS + 1), bytes as integers."""
        x = self.token(text[:, :-1]) + self.position.weight
        x = self.layers(x, mask=self.mask, is_causal=True)
        return F.cross_entropy(self.output(self.norm(x)).flatten(0, 1), text[:, 1:].flatten())


def batches(text: str, count: int) -> list[Tensor]:
    """Windows of the text at random places, the same at every call."""
    numbers = torch.tensor(list(text.encode()))
    places = torch.randint(
        len(numbers) - STEPS, (count, BATCH), generator=torch.Generator().manual_seed(0)
    )
    return [torch.stack([numbers[at : at + STEPS + 1] for at in row]) for row in places.tolist()]


def train(
    loss_of: Callable[[Tensor], Tensor], optimizer: torch.optim.Optimizer, texts: list[Tensor]
) -> list[float]:
    """The losses of a step a batch."""
    losses = []
    for text in texts:
        optimizer.zero_grad()
        loss = loss_of(text)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train, plan, train on, and tell the peaks."""
    torch.manual_seed(0)
    module = Transformer()
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    losses = train(module, optimizer, batches(REFERENCE, TAUGHT))
    print(f"Python's reference, no plan: loss {losses[0]:.2f} to {losses[-1]:.2f}")

    texts = batches(DOCUMENTS, TUNED)
    moments = [each for state in optimizer.state.values() for each in state.values()]
    held = (*module.parameters(), *module.buffers(), *moments, texts[0])
    optimizer.zero_grad()
    eager_peak = measured_peak(lambda: module(texts[0]).backward(), held)
    step = graphc.torch.plan(module, (texts[0],), budget=2 * eager_peak // 3, reserve=optimizer)
    tuned = train(step, optimizer, texts)
    optimizer.zero_grad()
    peak = measured_peak(lambda: step(texts[0]).backward(), held)

    print(f"graphc's documents, planned:  loss {tuned[0]:.2f} to {tuned[-1]:.2f}")
    print(f"peak of a step without a plan {eager_peak / 2**20:6.1f} MiB")
    print(f"peak of the plan              {step.report.peak_bytes / 2**20:6.1f} MiB")
    print(f"measured                      {peak / 2**20:6.1f} MiB")


if __name__ == "__main__":
    main()
