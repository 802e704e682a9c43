"""The device of a memory plan as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import Any, Literal

from graphc.devices.device import DEVICES, KERNELS, NO_PAIRS, Device, Kernels
from graphc.json_fields import JsonReader

TENSOR_RATES = ("narrow_flops_per_second", "tf32_flops_per_second")
"""Fields of devices that are not stored in a file. A device named like a profile has the rates of
that profile, and other devices have none."""


def device_object(device: Device) -> dict[str, Any]:
    """Return a device profile as a JSON object.

    The object omits default kernels, tensor rates, and a cuDNN version of 0. Older versions of
    graphc did not write these fields, so their files keep the same checksum.
    """
    content = asdict(device)
    if device.kernels == _unsaid_kernels(device.kind):
        del content["kernels"]
    for name in TENSOR_RATES:
        del content[name]
    if not device.cudnn_version:
        del content["cudnn_version"]
    return content


def _unsaid_kernels(kind: object) -> Kernels:
    return "numpy" if kind == "cpu" else "native"


def read_device(reader: JsonReader, given: object) -> Device:
    """Return the device of a plan file; fails as `JsonReader` does if it is invalid."""
    if isinstance(given, dict):
        unsaid = {"kernels": _unsaid_kernels(given.get("kind")), "cudnn_version": 0}
        given = unsaid | given
    names = [field.name for field in fields(Device) if field.name not in TENSOR_RATES]
    found = reader.record(given, names, "device")
    device = Device(
        reader.text_of(found["name"], "device.name"),
        reader.number(found["flops_per_second"], "device.flops_per_second"),
        reader.number(found["bytes_per_second"], "device.bytes_per_second"),
        reader.whole(found["workspace_limit_bytes"], "device.workspace_limit_bytes"),
        _kind(reader, found["kind"]),
        reader.whole(found["architecture"], "device.architecture"),
        _kernels(reader, found["kernels"]),
        cudnn_version=reader.whole(found["cudnn_version"], "device.cudnn_version", NO_PAIRS),
    )
    for name in ("flops_per_second", "bytes_per_second"):
        if not getattr(device, name):
            reader.fail(f"device.{name}", "expected a number above 0", found[name])
    profile = DEVICES.get(device.name)
    if profile is None:
        return device
    return replace(
        device,
        narrow_flops_per_second=profile.narrow_flops_per_second,
        tf32_flops_per_second=profile.tf32_flops_per_second,
    )


def _kind(reader: JsonReader, given: object) -> Literal["cpu", "cuda"]:
    return "cuda" if reader.one_of(given, ("cpu", "cuda"), "device.kind") == "cuda" else "cpu"


def _kernels(reader: JsonReader, given: object) -> Kernels:
    return "numpy" if reader.one_of(given, KERNELS, "device.kernels") == "numpy" else "native"
