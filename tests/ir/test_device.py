"""Device profiles: the roofline in closed form, and names."""

import pytest

from graphc.errors import OptionError
from graphc.ir.device import DEVICES, NATIVE_CPU, Device, find_device


def test_the_roofline_is_the_larger_of_computing_and_moving():
    device = Device("d", flops_per_second=100.0, bytes_per_second=10.0)
    assert device.seconds(1000, 50) == 10.0
    assert device.seconds(100, 50) == 5.0
    assert device.seconds(0, 0) == 0.0


def test_profiles_have_their_names_and_grow_with_the_generations():
    assert find_device("cpu") is NATIVE_CPU
    assert all(device.name == name for name, device in DEVICES.items())
    generations = [find_device(name) for name in ("cpu", "v100", "a100", "h100", "h200")]
    for rate in ("flops_per_second", "bytes_per_second"):
        rates = [getattr(device, rate) for device in generations]
        assert rates == sorted(rates)


def test_an_unknown_profile_names_the_known_ones():
    with pytest.raises(OptionError, match="unknown device profile 'h300'; choose one of: cpu, v"):
        find_device("h300")
