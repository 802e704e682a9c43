"""The model of the caching allocator, against torch's own allocator on a simulated device.

Needs a torch that is built for CUDA, its headers and a C++ compiler; it needs no GPU. With
`--update-golden`, the first test records what ../test_allocator.py compares with.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch_cases.allocation_traces import case  # noqa: E402

from graphc.torch.fit.allocator import MIB, replay  # noqa: E402 - these need torch

ROOT = Path(torch.__file__).parent
HEADERS = ROOT.parent / "triton" / "backends" / "nvidia" / "include"
LIBRARIES = (ROOT / "lib", ROOT.parent / "nvidia" / "cu13" / "lib")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (LIBRARIES[0] / "libc10_cuda.so").exists()
        or not (HEADERS / "cuda.h").exists()
        or "define CUDA_VERSION 13" not in (HEADERS / "cuda.h").read_text()
        or shutil.which("g++") is None,
        reason="needs torch built for CUDA 13, its headers and g++",
    ),
]


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    """Return a function from a case to the peaks of torch's allocator."""
    program = tmp_path_factory.mktemp("allocator") / "torch_allocator"
    source = Path(__file__).with_name("torch_allocator.cpp")
    found = [f"-L{each}" for each in LIBRARIES] + [f"-Wl,-rpath,{each}" for each in LIBRARIES]
    links = ["-lc10_cuda", "-lc10", "-l:libcudart.so.13", "-ldl"]
    include = [f"-I{ROOT / 'include'}", f"-I{HEADERS}"]
    command = ["g++", "-std=c++20", "-w", "-rdynamic", source, "-o", program]
    subprocess.run([*command, *include, *found, *links], check=True)

    def peaks(replayed):
        settings = [f"expandable_segments:{replayed.expandable_segments}"]
        if replayed.max_split_bytes:
            settings.append(f"max_split_size_mb:{replayed.max_split_bytes // MIB}")
        ran = subprocess.run(
            [program],
            input="\n".join(
                [str(replayed.capacity_bytes or 1 << 40)]
                + [f"{key} {size}" for key, size in replayed.trace]
            ),
            env=dict(os.environ, PYTORCH_ALLOC_CONF=",".join(settings)),
            text=True,
            capture_output=True,
            check=True,
        )
        return [int(each) for each in ran.stdout.split()]

    return peaks


def test_recorded_peaks_are_those_of_torch(allocator, golden):
    lines = [" ".join(map(str, [seed, *allocator(case(seed))])) for seed in range(60)]
    golden("torch_allocator.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("first", range(1000, 2000, 100))
def test_peaks_equal_those_of_torch(allocator, first):
    for seed in range(first, first + 100):
        replayed = case(seed)
        peaks = replay(replayed.trace, **replayed.settings())
        assert [*vars(peaks).values()] == allocator(replayed), seed
