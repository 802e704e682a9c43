"""Bytes per rank of data-parallel training, by formula.

`ddp` is DistributedDataParallel; `zero1` the same with ZeroRedundancyOptimizer; `zero2` and
`zero3` are `fully_shard` of every block and of the module, with `reshard_after_forward` False and
True. The stages are those of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", 2020. The largest rank counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from graphc.errors import choose, whole_number
from graphc.torch.fit.optimizers import state_sizes
from graphc.torch.fit.options import SHARDS
from graphc.torch.fit.parameters import Parameter

Group = Sequence[Parameter]


@dataclass(frozen=True)
class RankBytes:
    """Bytes of one rank. Buffers hold gathered parameters, gradients of blocks, and messages."""

    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All bytes except buffers of the module, inputs and activations."""
        return self.parameter_bytes + self.gradient_bytes + self.state_bytes + self.buffer_bytes


def bytes_per_rank(
    shard: str, ranks: int, groups: Sequence[Group], optimizer: str = "adamw"
) -> RankBytes:
    """Return the bytes of the largest of `ranks` ranks.

    `groups` are those of `groups_of`. Buffers are counted at the step's peak, beside all
    activations and gradients, so the total is an upper bound. Raises `OptionError` for unknown
    names and fewer than one rank.
    """
    choose("sharding", shard, SHARDS)
    whole_number("ranks", ranks)
    parameters = [each for group in groups for each in group]
    if shard in ("ddp", "zero1"):
        gradients = _trained(parameters)
        owned = parameters if shard == "ddp" else _largest_share(parameters, ranks)
        buckets = gradients  # one copy of every gradient, in buckets of 25 MiB
        return RankBytes(_all(parameters), gradients, sum(state_sizes(optimizer, owned)), buckets)
    shards = [_shard(each, ranks) for each in parameters]
    states = sum(state_sizes(optimizer, shards))
    root, *blocks = ([_gathered(each, ranks) for each in group] for group in groups)
    buffers = (_of_zero2 if shard == "zero2" else _of_zero3)(root, blocks)
    return RankBytes(_all(shards), _trained(shards), states, buffers)


def _all(parameters: Iterable[Parameter]) -> int:
    return sum(each.size_bytes for each in parameters)


def _trained(parameters: Iterable[Parameter]) -> int:
    return sum(each.size_bytes for each in parameters if each.is_trainable)


def _largest_share(parameters: Sequence[Parameter], ranks: int) -> list[Parameter]:
    """Return the parameters of the rank with the most elements.

    ZeroRedundancyOptimizer does not split parameters. From the largest to the smallest, each goes
    to the rank with the fewest elements so far.
    """
    shares: list[list[Parameter]] = [[] for _ in range(ranks)]
    counts = [0] * ranks
    trained = [each for each in parameters if each.is_trainable]
    for each in sorted(trained, key=lambda each: each.count, reverse=True):
        rank = counts.index(min(counts))
        shares[rank].append(each)
        counts[rank] += each.count
    return shares[counts.index(max(counts))]


def _shard(parameter: Parameter, ranks: int) -> Parameter:
    """Return rank 0's shard: 1/N of the rows, rounded up, as in FSDP2."""
    rows, *rest = parameter.shape or (1,)
    return replace(parameter, shape=(-(-rows // ranks), *rest))


def _gathered(parameter: Parameter, ranks: int) -> Parameter:
    """Return a parameter padded to N equal shards."""
    rows, *rest = _shard(parameter, ranks).shape
    return replace(parameter, shape=(rows * ranks, *rest))


def _of_zero2(root: Group, blocks: Sequence[Group]) -> int:
    """Return the bytes of buffers if gathered parameters stay until the backward pass.

    In the forward pass of a group, these are live: all parameters gathered so far, and the
    messages that brought those of this group and the one before it. In its backward pass, the
    gradients of the root, of this group, and of the group after it, which are being reduced.
    """
    sizes = [_all(group) for group in (root, *blocks)]
    whole = [_trained(group) for group in blocks]
    gathered = list(accumulate(sizes))
    forward = zip(gathered, sizes, [0, *sizes], strict=False)
    backward = zip(gathered[1:], whole, [*whole[1:], 0], strict=False)
    return max(
        max(map(sum, forward)),
        _trained(root) + max(map(sum, backward), default=sizes[0]),
    )


def _of_zero3(root: Group, blocks: Sequence[Group]) -> int:
    """Return the bytes of buffers if each block's parameters are gathered for each pass.

    In the forward pass of a block, its parameters, the message that brought them, and the message
    of the group before it are live. In its backward pass, its parameters and gradients, the
    message of the block before it, and the gradients of the block after it, which are being
    reduced. The root's parameters and gradients are whole.
    """
    sizes, whole = [_all(group) for group in blocks], [_trained(group) for group in blocks]
    own = _all(root)
    forward = zip(sizes, sizes, [own, *sizes], strict=False)
    backward = zip(sizes, whole, [0, *sizes], [*whole[1:], 0], strict=False)
    return own + max(
        max(map(sum, forward), default=own),
        _trained(root) + max(map(sum, backward), default=0),
    )
