"""The GPU runtime. docs/gpu-status.md lists the parts that are implemented, compiled and run."""
