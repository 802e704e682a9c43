"""One rank's training steps in graphc or in torch's DistributedDataParallel, with one thread.

Run by rank_time.py in as many processes as there are ranks: under `mpiexec`, or with torchrun's
variables. Rank 0's standard output ends with a line of JSON: the seconds of each step, which ends
when all ranks have ended it, and for graphc the bytes of the arena and what a step allocated.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import tracemalloc
from typing import Any

from step_cases import OPTIMIZERS, Case, draw_feeds, network

import graphc

WARM_UP = 3


def graphc_steps(case: Case, ranks: int, count: int, shard: str) -> dict[str, Any]:
    """Of this rank under MPI."""
    program = graphc.compile(
        network(case), optimizer=OPTIMIZERS[case.optimizer](1e-3), ranks=ranks, shard=shard,
        threads=1,
    )  # fmt: skip
    feeds = draw_feeds(program.graph)
    found = _timed(lambda: program.step(feeds), count)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(WARM_UP):
        program.step(feeds)
    kept = tracemalloc.get_traced_memory()[0] - before
    return {
        "rank": program.rank,
        "seconds": found,
        "arena_bytes": program.arena_bytes,
        "kept_bytes": kept,
    }


def torch_steps(case: Case, count: int) -> dict[str, Any]:
    """Of this rank with gloo."""
    import torch
    import torch.distributed as distributed
    import torch_networks
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    graph = graphc.plan(network(case), training=True).graph
    feeds = {name: torch.from_numpy(array) for name, array in draw_feeds(graph).items()}
    made = DistributedDataParallel(torch_networks.NETWORKS[case.model](case.sizes))
    found = _timed(torch_networks.Trainer(made, case.optimizer, feeds), count)
    distributed.barrier()
    return {"rank": distributed.get_rank(), "seconds": found}


def _timed(step: Any, count: int) -> list[float]:
    """Every exchange holds ranks together, so each one's steps take as long as the slowest's."""
    for _ in range(WARM_UP):
        step()
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=lambda text: Case(**json.loads(text)))
    parser.add_argument("framework", choices=("graphc", "torch"))
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--shard", default="none")
    options = parser.parse_args()
    if options.framework == "graphc":
        found = graphc_steps(options.case, options.ranks, options.steps, options.shard)
    else:
        found = torch_steps(options.case, options.steps)
    if found["rank"] == 0:
        print(json.dumps(found), flush=True)
    if options.framework == "torch":
        os._exit(0)  # gloo's threads may end a process that waits for them


if __name__ == "__main__":
    main()
