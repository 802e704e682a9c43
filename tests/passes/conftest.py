"""What tests of the passes share."""

from runtime.emulated_gpu.conftest import folder

__all__ = ["folder"]
