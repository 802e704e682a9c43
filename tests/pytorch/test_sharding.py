"""Bytes per rank by formula, against torch's own sharding.

Torch's backend "fake" runs the code of any number of ranks in one process, without messages.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn  # noqa: E402

from graphc.errors import OptionError  # noqa: E402
from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402
from graphc.torch.fit.options import SHARDS  # noqa: E402
from graphc.torch.fit.parameters import blocks_of, groups_of  # noqa: E402
from graphc.torch.fit.sharding import bytes_per_rank  # noqa: E402

WIDTH = 128


def network(widths, head=WIDTH):
    """A stack of blocks with these hidden widths, and a head outside of them."""
    blocks = [nn.Sequential(nn.Linear(WIDTH, w), nn.Linear(w, WIDTH)) for w in widths]
    return nn.Sequential(nn.Sequential(*blocks), nn.ReLU(), nn.Linear(WIDTH, head))


NETWORKS = {
    "equal": lambda: network([256] * 6),
    "growing": lambda: network([128, 256, 512, 1024]),
    "shrinking": lambda: network([1024, 512, 256, 128]),
    "large head": lambda: network([128, 128], head=2048),
    "no blocks": lambda: nn.Linear(WIDTH, 512),
}


@pytest.fixture
def ranks():
    """Connect to 63 ranks that do nothing."""
    from torch import distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    yield 64
    distributed.destroy_process_group()


def local_bytes(tensors):
    locals_ = (each.to_local() if hasattr(each, "to_local") else each for each in tensors)
    return sum(each.untyped_storage().nbytes() for each in locals_)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("shard", ["zero2", "zero3"])
@pytest.mark.parametrize("name", NETWORKS)
def test_stages_2_and_3_have_the_bytes_of_fully_shard(name, shard, ranks):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    module = NETWORKS[name]()
    expected = bytes_per_rank(shard, ranks, groups_of(module))
    mesh = init_device_mesh("cpu", (ranks,))
    settings = (
        {"mesh": mesh, "reshard_after_forward": False} if shard == "zero2" else {"mesh": mesh}
    )
    for block in blocks_of(module):
        fully_shard(block, **settings)
    fully_shard(module, **settings)
    optimizer = torch.optim.AdamW(module.parameters())
    x = torch.randn(1, WIDTH)

    def step():
        module(x).sum().backward()

    step()
    optimizer.step()
    parameters = [*module.parameters()]
    assert local_bytes(parameters) == expected.parameter_bytes
    gradients = {each.grad.to_local().untyped_storage()._cdata: each.grad for each in parameters}
    assert local_bytes(gradients.values()) == expected.gradient_bytes
    states = [each for state in optimizer.state.values() for each in state.values()]
    assert local_bytes(states) == expected.state_bytes
    optimizer.zero_grad()
    del gradients
    found = measured_peak(step)
    activations = 64 * 1024
    assert expected.buffer_bytes <= found
    assert found <= expected.buffer_bytes + expected.gradient_bytes + activations


RANK = """
import os, torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from graphc.torch.budget.trace.measure import recording  # noqa: E402

distributed.init_process_group("gloo")
module = nn.Sequential(nn.Linear(64, 300), nn.Linear(300, 64), nn.Linear(64, 100))
with recording() as found:
    parallel = DistributedDataParallel(module, init_sync=False)  # without messages of gloo
buckets = sum(change for _, change in found.changes)
optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.AdamW)
parallel(torch.randn(2, 64)).sum().backward()
optimizer.step()
states = sum(each.nbytes for state in optimizer.optim.state.values() for each in state.values())

for block in module:
    fully_shard(block)
fully_shard(module)
optimizer = torch.optim.AdamW(module.parameters())
module(torch.randn(2, 64)).sum().backward()
optimizer.step()
local = [(each.to_local(), each.grad.to_local()) for each in module.parameters()]
moments = [each for state in optimizer.state.values() for each in state.values()]
found = [buckets, states, sum(each.nbytes for each, _ in local), sum(g.nbytes for _, g in local)]
found.append(sum(getattr(each, "_local_tensor", each).nbytes for each in moments))
os.write(1, f"found {' '.join(map(str, found))}\\n".encode())
distributed.barrier()
os._exit(0)  # threads of gloo may abort at exit
"""


@pytest.mark.slow
def test_two_ranks_of_gloo_have_the_bytes_of_the_formulas():
    module = nn.Sequential(nn.Linear(64, 300), nn.Linear(300, 64), nn.Linear(64, 100))
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    found = subprocess.run(
        [sys.executable, *start, sys.executable, "-c", RANK],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    lines = [line.split()[1:] for line in found.stdout.splitlines() if line.startswith("found ")]
    first, second = ([int(number) for number in line] for line in lines)
    ddp, one, _, three = (bytes_per_rank(each, 2, groups_of(module)) for each in SHARDS)
    for buckets in (first[0], second[0]):
        assert ddp.buffer_bytes <= buckets <= ddp.buffer_bytes + 8192
    assert max(first[1], second[1]) == one.state_bytes
    expected = [three.parameter_bytes, three.gradient_bytes, three.state_bytes]
    assert first[2:] == second[2:] == expected


def test_stages_divide_what_the_paper_says():
    """ZeRO, section 5: stage 1 divides states, stage 2 gradients too, stage 3 parameters too."""
    groups = groups_of(network([256] * 8))
    count = sum(each.count for group in groups for each in group)
    ddp, one, two, three = (bytes_per_rank(each, 4, groups) for each in SHARDS)
    for each in (ddp, one):
        assert (each.parameter_bytes, each.gradient_bytes) == (4 * count, 4 * count)
    assert ddp.state_bytes == pytest.approx(8 * count, rel=1e-3)
    for each in (two, three):
        assert each.state_bytes == pytest.approx(2 * count, rel=0.01)
    assert 2 * count < one.state_bytes < 2.2 * count  # parameters are not split
    assert two.gradient_bytes == three.gradient_bytes == count
    assert two.parameter_bytes == three.parameter_bytes == count
    assert three.total_bytes < two.total_bytes < one.total_bytes < ddp.total_bytes


def test_frozen_parameters_have_no_gradients_and_states():
    module = network([256] * 2)
    for each in module[0].parameters():
        each.requires_grad_(False)
    trained = sum(each.nbytes for each in module.parameters() if each.requires_grad)
    for shard in SHARDS:
        found = bytes_per_rank(shard, 1, groups_of(module))
        assert found.gradient_bytes == trained
        assert found.state_bytes == 2 * trained + 2 * 4


def test_unknown_shardings_are_rejected_with_near_names():
    with pytest.raises(OptionError, match=r"unknown sharding 'zero4'.*did you mean zero3"):
        bytes_per_rank("zero4", 2, [[]])
    with pytest.raises(OptionError, match="ranks must be an integer of at least 1, got 0"):
        bytes_per_rank("ddp", 0, [[]])
