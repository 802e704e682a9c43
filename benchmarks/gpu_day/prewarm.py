"""Compile, without a GPU, the kernels that run.sh launches, so that none of its time goes there.

Machine code is kept under FOLDER/graphc/kernels, which is $XDG_CACHE_HOME/graphc/kernels on the
machine with the GPU. It is found there if NVRTC has the same version.
Run: python benchmarks/gpu_day/prewarm.py FOLDER [ARCHITECTURE]
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks" / "gpu_day")]

from day import NETWORKS, VARIANTS  # noqa: E402 - the paths come first
from models.test_zoo import SMALL  # noqa: E402
from on_gpu.test_models import STRATEGIES  # noqa: E402
from on_gpu.test_narrow import CASES, attending  # noqa: E402
from on_gpu.test_narrow import NETWORKS as NARROW  # noqa: E402
from on_gpu.test_ops import in_float32  # noqa: E402
from ops.samples import SAMPLES  # noqa: E402
from ops.test_every_op import build  # noqa: E402

import graphc  # noqa: E402
from graphc import selftest  # noqa: E402
from graphc.runtime.gpu.bind import bind, kernels_of  # noqa: E402
from graphc.runtime.gpu.cubins import cubins  # noqa: E402
from graphc.runtime.gpu.nvrtc import version  # noqa: E402
from graphc.runtime.gpu.step_model import ADDRESS, AnyEngine  # noqa: E402

NVRTC = (13, 0)
"""The version on the machine with the GPU."""

RUN_OPTIONS = ("cuda_graph", "poison")
"""Options of a strategy that are no part of a plan."""


class Warmer:
    """Compiles the kernels of plans into a folder, each once."""

    def __init__(self, folder: Path, architecture: int) -> None:
        self.folder, self.architecture = folder, architecture
        self.compiled: set[str] = set()

    def plan(self, plan: graphc.MemoryPlan, together: bool = True) -> None:
        """Compile what a plan launches, with cuDNN and without."""
        for cudnn in (None, AnyEngine()):
            works = bind(plan, ADDRESS, cudnn=cudnn, together=together)
            kernels = kernels_of(call for work in works for call in work.calls)
            new = [kernel for kernel in kernels if kernel.name not in self.compiled]
            cubins(new, self.architecture, self.folder)
            self.compiled.update(kernel.name for kernel in new)


def main() -> None:
    if version() != NVRTC:
        sys.exit(
            f"NVRTC is {version()}, and {NVRTC} is needed: pip install 'nvidia-cuda-nvrtc==13.0.*'"
        )
    folder, *rest = sys.argv[1:]
    warmer = Warmer(Path(folder) / "graphc" / "kernels", int(rest[0]) if rest else 90)
    for sample in SAMPLES:
        _, _, outputs = build(in_float32(sample))
        warmer.plan(graphc.plan(outputs=outputs, training=True, device="h100"), together=False)
    for network in SMALL.values():
        for options in ({}, *STRATEGIES):
            planned = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
            plan = graphc.plan(
                network(), optimizer=graphc.optim.SGD(0.05), device="h100", **planned
            )
            warmer.plan(plan, together="poison" not in options)
    narrow = [partial(attending, case, "float32") for case in CASES]
    for network in (*narrow, *NARROW.values()):
        for precision in ("bf16", "fp16", "fp32"):
            plan = graphc.plan(
                network(), optimizer=graphc.optim.SGD(0.05), device="h200", precision=precision
            )
            warmer.plan(plan)
    for network in selftest.NETWORKS.values():
        for options in ({}, {"precision": "bf16"}, *selftest.STRATEGIES):
            planned = {name: value for name, value in options.items() if name not in RUN_OPTIONS}
            plan = graphc.plan(
                network("float32"), optimizer=graphc.optim.SGD(0.05), device="h100", **planned
            )
            warmer.plan(plan, together="poison" not in options)
    for name, (network, optimizer) in NETWORKS.items():
        for options in VARIANTS[name].values():
            planned = {"precision": "bf16", **options}
            planned.pop("cudnn", None)
            warmer.plan(graphc.plan(network(), device="h200", optimizer=optimizer, **planned))
    print(f"{len(warmer.compiled)} kernels")


if __name__ == "__main__":
    main()
