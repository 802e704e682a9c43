"""What tests of the passes share."""

from runtime.gpu.conftest import folder

__all__ = ["folder"]
