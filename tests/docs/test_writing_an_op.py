"""The op of docs/writing-an-op.md: it is read from there, and works on the CPU and as CUDA text."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CHECKS = """
import numpy as np
from codegen.on_cpu import Library, aligned, generated, kernels_in
from graphc.ir.builder import trace

given = np.linspace(-20, 20, 41)
wide = graphc.input("wide", given.shape, "float64")
y = squareplus(wide)
(dx,) = graphc.gradient(graphc.sum(y * y), [wide])
(again,) = graphc.gradient(graphc.sum(dx), [wide])
found = graphc.compile(outputs=[y, dx, again]).step(wide=given)
root = np.sqrt(given**2 + 4)
expected, first, second = (given + root) / 2, (1 + given / root) / 2, 2 / root**3
slope = 2 * first**2 + 2 * expected * second
np.testing.assert_allclose(found["output0"], expected, rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(found["output1"], 2 * expected * first, rtol=1e-9, atol=1e-12)
np.testing.assert_allclose(found["output2"], slope, rtol=1e-9, atol=1e-12)

fed = np.random.default_rng(0).standard_normal((32, 64)).astype(np.float32)
losses = [float(program.step(x=fed)["loss"]) for _ in range(5)]
assert losses == sorted(losses, reverse=True)
assert {"squareplus", "squareplus_gradient"} <= {node.op.name for node in for_gpu.graph.nodes}

(node,) = trace({"y": y}).nodes
arrays = {wide: aligned(given), node.output: aligned(np.full_like(given, 77))}
calls = generated(node, arrays)
Library(kernels_in([calls])).run(calls, arrays)
np.testing.assert_allclose(arrays[node.output], expected, rtol=1e-9, atol=1e-12)
"""


def test_the_op_of_the_page_works_on_the_cpu_and_as_a_kernel():
    """In a process of its own, so that no other test meets the op."""
    text = (ROOT / "docs" / "writing-an-op.md").read_text()
    section = text.split("## A new op, end to end", 1)[1].split("\n## ", 1)[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 3
    path = [str(ROOT), str(ROOT / "tests")]
    program = f"import sys\nsys.path[:0] = {path!r}\n" + "\n".join([*blocks, CHECKS])
    subprocess.run([sys.executable, "-c", program], check=True)
