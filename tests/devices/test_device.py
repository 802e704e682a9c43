"""Device profiles: the roofline in closed form, and names."""

import pytest

from graphc.devices.device import (
    DEVICES,
    NATIVE_CPU,
    Device,
    find_device,
    planned_device,
    profiles,
)
from graphc.devices.device_memory import gpu_memory, sold_gigabytes
from graphc.errors import OptionError
from graphc.ir.types import bfloat16, float16, float32, float64


def test_the_roofline_is_the_larger_of_computing_and_moving():
    device = Device("d", flops_per_second=100.0, bytes_per_second=10.0)
    assert device.seconds(1000, 50) == 10.0
    assert device.seconds(100, 50) == 5.0
    assert device.seconds(0, 0) == 0.0


def test_products_run_at_the_rate_of_their_operands():
    h200, cpu = find_device("h200"), find_device("cpu")
    assert h200.product_rate(bfloat16) == h200.product_rate(float16) == 989e12
    assert h200.product_rate(float32) == h200.product_rate(float64) == 67e12
    assert h200.product_rate(float32, tf32=True) == 494e12
    assert h200.product_rate(float64, tf32=True) == 67e12
    assert cpu.product_rate(bfloat16) == cpu.product_rate(float32) == cpu.flops_per_second
    assert h200.seconds(1000, 0, 10.0) == 100.0


def test_profiles_have_their_names_and_grow_with_the_generations():
    assert find_device("cpu") is NATIVE_CPU
    assert all(device.name == name for name, device in DEVICES.items())
    generations = [find_device(name) for name in ("cpu", "v100", "a100", "h100", "h200")]
    for rate in ("flops_per_second", "bytes_per_second", "narrow_flops_per_second"):
        rates = [getattr(device, rate) for device in generations]
        assert rates == sorted(rates)


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(OptionError, match="unknown device profile 'h300'; choose one of: cpu, v"):
        find_device("h300")


@pytest.mark.parametrize("text", ["16GB", "16 gb", "16GiB"])
def test_a_memory_is_the_smallest_gpu_sold_with_it(text):
    found = planned_device(text, None)
    assert found is find_device("t4")
    usable = gpu_memory(found.name).usable_bytes
    for name in profiles():
        if sold_gigabytes(name) == 16:
            assert gpu_memory(name).usable_bytes >= usable


def test_a_memory_that_no_gpu_has_lists_those_that_they_have():
    with pytest.raises(OptionError, match=r"sold with 17GB; choose one of: 8GB, .*, 16GB, 24GB"):
        planned_device("17GB", None)
