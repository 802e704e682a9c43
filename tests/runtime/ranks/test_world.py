"""Who the ranks are, by the variables of what starts them."""

import pytest

from graphc.runtime.ranks.world import World, find_world

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
}  # fmt: skip
SLURM = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, World()),
        (MPICH, World(1, 4, "mpirun", 1)),
        (OPEN_MPI, World(2, 3, "mpirun of Open MPI", 0)),
        (SLURM, World(1, 2, "srun", 0)),
        (TORCHRUN, World(5, 8, "torchrun", 1)),
        # An mpirun, or a torchrun on each machine, that srun has started.
        (SLURM | MPICH, World(1, 4, "mpirun", 1)),
        (SLURM | TORCHRUN, World(5, 8, "torchrun", 1)),
        # A task alone, and variables that are no numbers.
        (SLURM | {"SLURM_STEP_NUM_TASKS": "1"}, World()),
        (MPICH | {"PMI_SIZE": "four"}, World()),
        (MPICH | {"MPI_LOCALRANKID": ""}, World(1, 4, "mpirun", 0)),
    ],
)
def test_a_rank_is_what_its_launcher_says(environment, expected):
    assert find_world(environment) == expected
