"""The memory that an arena can have: profiles of GPUs, and limits of control groups."""

import os
import sys

import pytest
from runtime.emulated_gpu.fake_cupy import TOTAL, fake_cupy

from graphc.devices.device import CPU, Device, find_device, profiles
from graphc.devices.device_memory import (
    GIB,
    MIB,
    REPORTED_MIB,
    gpu_memory,
    machine_memory,
    sold_gigabytes,
)
from graphc.runtime.gpu.cuda import LIBRARY_BYTES
from graphc.runtime.gpu.device import Gpu, profile_of
from graphc.runtime.memory import memory_of

PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def machine(root, groups, limits):
    """The memory of a machine whose process is in these groups, with limits by their files."""
    files = {"proc/self/cgroup": groups}
    files |= {f"sys/fs/cgroup/{name}": limit for name, limit in limits.items()}
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return machine_memory(root)


def test_every_gpu_has_its_memory_and_sold_sizes_are_not_exceeded():
    assert set(REPORTED_MIB) == set(profiles())
    sold = {"v100": 16, "v100-32gb": 32, "a100": 80, "a100-40gb": 40, "l40s": 48, "h100": 80,
            "h200": 141, "gh200": 96, "h20": 96, "t4": 16, "l4": 24, "rtx-3090": 24,
            "rtx-4090": 24, "rtx-5090": 32,
            "b200": 180, "a10": 24, "a40": 48, "rtx-a5000": 24, "rtx-a6000": 48, "rtx-2080-ti": 11,
            "rtx-3060": 12, "rtx-3070": 8, "rtx-3080": 10, "rtx-4060": 8, "rtx-4070": 12,
            "rtx-4070-ti": 12, "rtx-4080": 16, "rtx-4080-super": 16, "rtx-5070": 12,
            "rtx-5070-ti": 16, "rtx-5080": 16}  # fmt: skip
    assert set(sold) == set(profiles())
    for name, gigabytes in sold.items():
        assert sold_gigabytes(name) == gigabytes
        found = memory_of(find_device(name))
        assert 0.92 * gigabytes * GIB < found.total_bytes <= gigabytes * GIB
        assert GIB <= found.total_bytes - found.usable_bytes <= 2.5 * GIB
        assert found.total_bytes - found.usable_bytes > LIBRARY_BYTES
        assert found.spare_bytes(found.usable_bytes + 1) == -1


def test_a_gpu_is_found_by_its_drivers_name():
    called = {
        "NVIDIA A100-SXM4-40GB": "a100-40gb",
        "NVIDIA A100-SXM4-80GB": "a100",
        "Tesla V100-SXM2-32GB": "v100-32gb",
        "Tesla V100-SXM2-16GB": "v100",
        "Tesla T4": "t4",
        "NVIDIA L40S": "l40s",
        "NVIDIA GeForce RTX 4090": "rtx-4090",
        "NVIDIA GeForce RTX 4080": "rtx-4080",
        "NVIDIA GeForce RTX 4080 SUPER": "rtx-4080-super",
        "NVIDIA RTX A6000": "rtx-a6000",
        "NVIDIA A10": "a10",
        "NVIDIA H100 80GB HBM3": "h100",
        "NVIDIA GH200 480GB": "gh200",
        "NVIDIA H20": "h20",
    }
    others = ("NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 3090 Ti", "NVIDIA L40")
    for name, profile in {**called, **{name: name for name in others}}.items():
        assert profile_of(Gpu(0, name, 80, TOTAL, TOTAL, 1e12, 1e9)).name == profile


@pytest.mark.parametrize("name", sorted(set(profiles()) - {"v100", "v100-32gb", "h20"}))
def test_tensor_cores_of_an_unknown_gpu_have_the_rates_of_its_architecture(name):
    """By the data sheets of known GPUs; H20 is slower than its architecture."""
    known = find_device(name)
    is_geforce = known.name.startswith("rtx-") and not known.name.startswith("rtx-a")
    called = "NVIDIA GeForce XY" if is_geforce else "NVIDIA XY"
    gpu = Gpu(0, called, known.architecture, TOTAL, TOTAL, known.flops_per_second, 1e9)
    found = profile_of(gpu)
    assert found.name == called
    for rate in ("narrow_flops_per_second", "tf32_flops_per_second"):
        assert getattr(found, rate) == pytest.approx(getattr(known, rate), rel=0.1)


def test_a_gpu_of_this_machine_without_a_profile_has_the_memory_that_cuda_says(monkeypatch):
    device = Device("Some GPU", 1e12, 1e9, kind="cuda", architecture=90)
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(1))
    assert memory_of(device).total_bytes == TOTAL
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert memory_of(device) is None


def test_the_cpu_has_this_machines_memory():
    assert memory_of(CPU) == machine_memory()
    assert machine_memory().total_bytes <= PHYSICAL
    assert 0 < machine_memory().usable_bytes < machine_memory().total_bytes


def test_a_machine_without_control_groups_has_all_its_memory(tmp_path):
    assert machine_memory(tmp_path).total_bytes == PHYSICAL
    assert machine(tmp_path, "0::/\n", {}).total_bytes == PHYSICAL


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{GIB}\n"}),
        ("0::/a/b\n", {"a/b/memory.max": f"{GIB}\n", "a/memory.max": f"{2 * GIB}\n"}),
        ("0::/\n", {"memory.max": f"{GIB}\n"}),
        # Inside a container: the path is of the host, the limit lies at the top.
        ("0::/docker/x\n", {"memory.max": f"{GIB}\n"}),
        (
            "5:cpu:/z\n4:memory,pids:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": f"{GIB}", "cpu/z/memory.limit_in_bytes": "5"},
        ),
    ],
)
def test_the_least_limit_of_the_control_groups_counts(tmp_path, groups, limits):
    found = machine(tmp_path, groups, limits)
    assert found.total_bytes == GIB
    assert found.usable_bytes == GIB - GIB // 8


def test_no_limit_is_no_limit(tmp_path):
    limits = {"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory.max": "max\n"}
    assert machine(tmp_path, "4:memory:/\n0::/\n", limits).total_bytes == PHYSICAL


def test_a_gibibyte_is_left_of_a_large_machine_and_of_a_gpu_a_part_more():
    assert gpu_memory("of mine", 128 * GIB).usable_bytes == 126 * GIB
    assert gpu_memory("of mine", MIB).usable_bytes == 0
    assert gpu_memory("of nobody") is None
