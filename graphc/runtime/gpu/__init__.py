"""The GPU runtime. What of it is written, compiled and run, and where: docs/gpu-status.md."""
