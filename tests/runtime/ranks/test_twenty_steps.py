"""Training on 2 and 4 processes under MPI, against one process on the joint batch.

In float64 states agree to 1e-12. In float32 and bf16 two sums of the same numbers in another order
are as far apart as each is from the exact one, so what is allowed is a multiple of how far one
process is from one process in float64.
"""

import numpy as np
import pytest
from runtime.ranks.test_mpi import pytestmark as needs_mpi
from runtime.ranks.test_mpi import run
from runtime.ranks.twenty_steps import MOMENTUM, NETWORKS, WAYS, trained

pytestmark = [needs_mpi, pytest.mark.slow]

APART = 4.0
"""How much farther ranks may be from one process than that is from float64."""


def states_of(network, ranks, folder):
    """States by way, of each rank."""
    folder.mkdir()
    found = run(ranks, "-m", "runtime.ranks.twenty_steps", network, str(folder), seconds=300)
    assert found.returncode == 0, found.stderr
    return {
        way: [dict(np.load(folder / f"{way}-{rank}.npz")) for rank in range(ranks)] for way in WAYS
    }


def farthest(states, others):
    return max(np.abs(states[name].astype(np.float64) - others[name]).max() for name in states)


@pytest.mark.parametrize(
    ("network", "ranks"), [(name, 2 + 2 * (i % 2)) for i, name in enumerate(NETWORKS)]
)
def test_ranks_train_as_one_process_does(network, ranks, tmp_path):
    found, again = (states_of(network, ranks, tmp_path / name) for name in ("first", "again"))
    exact = trained(network, "float64", MOMENTUM, 0, 1)
    for way, (dtype, options) in WAYS.items():
        for states, others in zip(found[way], again[way], strict=True):
            for name, state in found[way][0].items():
                assert states[name].tobytes() == others[name].tobytes() == state.tobytes()
        whole = {key: value for key, value in options.items() if key != "shard"}
        one = trained(network, dtype, whole, 0, 1)
        apart = farthest(one, found[way][0])
        limit = 1e-12 if dtype == "float64" else APART * farthest(one, exact)
        assert apart <= limit, f"{way}: {apart} of {limit}"
    for way in ("accumulated", "adam", "bf16"):
        for name, state in found[way][0].items():
            assert state.tobytes() == found[f"sharded {way}"][0][name].tobytes()
    for name, state in found["plain"][0].items():
        assert state.tobytes() == found["sharded"][0][name].tobytes()
