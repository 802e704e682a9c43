"""What graphc says of GPUs, with a stand-in for CuPy where one is needed."""

import json
import sys

import pytest
from cli.running import run
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.fake_cupy import FREE, TOTAL, CudaError, fake_cupy

from graphc.cli import devices
from graphc.errors import GpuUnavailable, GraphcError
from graphc.plans.memory_plan import PRECISIONS
from graphc.runtime.gpu.device import Gpu, cuda_versions, find_gpus, number_of_rank


def test_without_cupy(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(GpuUnavailable, match="CuPy cannot be imported") as caught:
        find_gpus()
    assert "pip install cupy-cuda13x, or pip install '.[gpu]' in a checkout" in str(caught.value)
    assert 'device="cpu"' in str(caught.value)
    assert isinstance(caught.value, GraphcError)


def test_without_a_driver(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(CudaError("insufficient driver"), 0))
    with pytest.raises(GpuUnavailable, match="insufficient driver; driver none") as caught:
        find_gpus()
    assert "install NVIDIA's driver for CUDA 13 or later" in str(caught.value)


def test_without_a_device(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(0))
    with pytest.raises(GpuUnavailable, match="no CUDA device"):
        find_gpus()


@pytest.mark.parametrize(
    ("driver", "cure"),
    [
        (12_090, "driver 12.9; replace it with NVIDIA's driver for CUDA 13 or later"),
        (13_000, "driver 13.0; the driver is recent enough; check nvidia-smi"),
        (14_010, "driver 14.1; the driver is recent enough; check nvidia-smi"),
    ],
)
def test_a_driver_that_finds_nothing(monkeypatch, driver, cure):
    """CUDA 13.0's driver serves what is built for 13.2."""
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(CudaError("no device"), driver))
    with pytest.raises(GpuUnavailable) as caught:
        find_gpus()
    assert cure in str(caught.value).replace(")", "")


def test_devices_are_listed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(2))
    peaks = (2 * 1e9 * 100 * 128, 2 * 2e9 * 512 / 8)  # multiplies and adds; both edges of a clock
    expected = tuple(Gpu(n, "Some GPU", 90 + n, TOTAL, FREE, *peaks) for n in (0, 1))
    assert find_gpus() == expected
    assert cuda_versions() == {"cupy": "14.2.0", "cuda": "13.2", "driver": "13.1"}


@pytest.mark.parametrize(("count", "number"), [(1, 0), (2, 3)], ids=["its own alone", "all"])
def test_a_rank_has_the_gpu_of_its_number_or_the_only_one_that_it_sees(monkeypatch, count, number):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(count))
    assert number_of_rank(3) == number


def test_the_command_names_each_device(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(1))
    code, out, _ = run(capsys, "devices")
    assert code == 0
    assert out.startswith("cpu ")
    assert "cuda:0  Some GPU, sm_90, 3.00 GiB free of 4.00 GiB" in out
    assert "cupy: 14.2.0" in out
    assert "docs/gpu-status.md" in out


def test_the_command_prints_why_there_is_none(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, out, _ = run(capsys, "devices")
    assert code == 0
    assert "cuda    no GPU is usable: CuPy cannot be imported" in out
    code, out, _ = run(capsys, "devices", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["gpus"] == []
    assert found["cpu"]["memory_bytes"] > 2**20
    assert found["gpu_unavailable"].startswith("no GPU is usable")


def asked(monkeypatch, capsys):
    """What the command says of an emulated GPU with a stand-in for cuDNN."""
    found = Gpu(0, "NVIDIA H200", 90, 2**37, 2**37, 67e12, 4800e9)
    monkeypatch.setattr(devices, "find_gpus", lambda: (found,))
    monkeypatch.setattr(devices, "cuda_versions", dict)
    monkeypatch.setattr(devices, "find_gpu", lambda number: found)
    monkeypatch.setattr(devices, "CudaDevice", lambda gpu: EmulatedDevice())
    monkeypatch.setattr(devices, "load_cudnn", lambda: fake_cudnn)
    code, out, _ = run(capsys, "devices")
    assert code == 0
    return out, devices.describe()["gpus"][0]["cudnn_declines"]


def test_the_command_names_what_cudnn_declines(monkeypatch, capsys):
    """Nothing is allocated or run."""
    monkeypatch.setattr(EmulatedDevice, "allocate", None)
    served, none = asked(monkeypatch, capsys)
    assert not fake_cudnn.HANDLES
    monkeypatch.setattr(fake_cudnn, "ENGINES", [])
    out, every = asked(monkeypatch, capsys)
    kinds = {text.split(" ")[1] for requests in every.values() for text in requests}
    assert kinds == {"fprop", "dgrad", "wgrad", "forward", "backward"}
    assert set(every) == set(PRECISIONS) - {"fp8"}  # whose requests are those of bf16
    assert sum(map(len, every.values())) > sum(map(len, none.values()))
    assert "cuDNN declines in bf16: convolution fprop x=" in out
    assert all(set(none[name]) <= set(every[name]) for name in none)
    assert ("cuDNN declines in" in served) is bool(none)


def test_the_command_prints_why_cudnn_is_unavailable(monkeypatch, capsys):
    def no_handle():
        raise RuntimeError("CUDNN_STATUS_NOT_INITIALIZED")

    monkeypatch.setattr(fake_cudnn, "create_handle", no_handle)
    out, found = asked(monkeypatch, capsys)
    assert "cuDNN cannot be used on this GPU (CUDNN_STATUS_NOT_INITIALIZED)" in found
    assert f"        {found}" in out
