"""What NVRTC makes of kernels, as NVIDIA's cuobjdump shows it: registers, memory, instructions."""

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections import Counter

import pytest
from codegen.test_zoo_kernels import kernels_of_plan

import graphc as g
from graphc.codegen.lowering import calls_of
from graphc.codegen.text.kernel import module_text
from graphc.codegen.text.operands import in_one_piece
from graphc.ir.ancestors import ancestors
from graphc.models import MODELS
from graphc.runtime.gpu.bind import BoundLaunch, bind
from graphc.runtime.gpu.nvrtc import compile_cubin, compile_ptx
from graphc.runtime.gpu.step_model import ADDRESS

REGISTERS_OF_A_PROCESSOR = 65_536
REGISTER_GRANULE = 8
"""A thread gets registers in such numbers."""
MOST_THREADS_UNKNOWN = 256
"""Threads of a block of kernels that are looked at without their launches."""
MOST_SHARED = 48 * 2**10


@pytest.fixture(scope="module")
def cuobjdump(tmp_path_factory):
    """The tool, with nvdisasm beside it: wheels do not keep that files may be executed."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("cuobjdump", "nvdisasm"):
        try:
            files = importlib.metadata.files(f"nvidia-cuda-{name}") or ()
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"nvidia-cuda-{name} is not installed")
        (own,) = (file for file in files if file.name == name)
        shutil.copy(own.locate(), folder)
        (folder / name).chmod(0o755)

    def run(option, text, architecture=90):
        path = folder / "kernels.cubin"
        path.write_bytes(compile_cubin(text, architecture))
        command = [folder / "cuobjdump", option, path]
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        return done.stdout

    return run


def resources(text):
    """Of each kernel the registers of a thread, and its bytes of stack, shared and local memory."""
    found = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", text)
    return {name: tuple(map(int, numbers)) for name, *numbers in found}


def instructions(text):
    """How many there are of each, by name without modifiers, and by whole name."""
    whole = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P[T\d]+\s+)?([A-Z][A-Z0-9_.]*)", text, re.M)
    return Counter(name.split(".")[0] for name in whole) + Counter(n for n in whole if "." in n)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "architecture"), [("fp32", 80), ("bf16", 90)], ids=["fp32", "bf16"]
)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_of_the_zoo_keep_to_registers(cuobjdump, name, precision, architecture):
    """None has a stack or spills to local memory, and a block finds registers and shared memory."""
    forms = ({}, {"attention": "composed"}, {"drop": 0.0})
    for each in forms if name in ("gpt2", "bert", "vit") else ({},):
        plan = g.plan(
            MODELS[name](**each), optimizer=g.optim.Adam(1e-3), reorder=False, device="cuda",
            precision=precision,
        )  # fmt: skip
        kernels = kernels_of_plan(plan)
        found = resources(cuobjdump("--dump-resource-usage", module_text(kernels), architecture))
        assert found.keys() == {kernel.name for kernel in kernels}
        check_resources(found, architecture, blocks_of_plan(plan))


def blocks_of_plan(plan):
    """Kernel → the most threads of its blocks."""
    found = {}
    for work in bind(plan, ADDRESS, together=False):
        for call in work.calls:
            if isinstance(call, BoundLaunch):
                name = call.kernel.name
                found[name] = max(found.get(name, 0), call.block)
    return found


def check_resources(found, architecture, blocks):
    """From sm_90 on the system keeps 1 KiB of each block's shared memory."""
    kept = 1024 if architecture >= 90 else 0
    for kernel, (registers, stack, shared, local) in found.items():
        assert (stack, local) == (0, 0), kernel
        assert shared - kept <= MOST_SHARED, kernel
        assert registers <= 255, kernel
        given = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
        assert given * blocks.get(kernel, MOST_THREADS_UNKNOWN) <= REGISTERS_OF_A_PROCESSOR, kernel


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [75, 80, 90, 100])
@pytest.mark.parametrize("drop", [0.0, 0.1])
@pytest.mark.parametrize("widths", [(64, 64), (128, 128), (100, 100), (72, 40)])
def test_heads_of_all_widths_keep_to_registers(cuobjdump, widths, drop, architecture):
    """Of those that tensor cores take, on which the oldest device has products of half the length
    and no bfloat16."""
    for dtype in ("float16", *(["bfloat16"] if architecture > 75 else [])):
        q, v = (g.parameter(n, (2, 3, 200, w), dtype) for n, w in zip("qv", widths, strict=True))
        y = g.attention(q, q, v, causal=True, drop=drop, form="fused")
        (dq,) = g.gradient(g.sum(y), [q])
        op = "dropped_attention" if drop else "attention"
        for name in (op, f"{op}_gradient"):
            text = module_text(kernels_of_op(name, dq))
            found = resources(cuobjdump("--dump-resource-usage", text, architecture))
            check_resources(found, architecture, {})


def sass(cuobjdump, name, y, architecture=90):
    """The instructions of the op of that name among the ancestors of y."""
    text = module_text(kernels_of_op(name, y))
    return instructions(cuobjdump("--dump-sass", text, architecture))


def kernels_of_op(name, y):
    """The kernels of the op of that name among the ancestors of y."""
    node = next(node for node in ancestors([y]) if node.op.name == name)
    places = {value: in_one_piece(value.type) for value in (*node.inputs, *node.outputs)}
    return calls_of(node, places).kernels


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention_of_16_bits_is_on_tensor_cores(cuobjdump, dtype, architecture):
    """Products of fragments, which are read as such and copied without a stop in registers."""
    x = g.parameter("x", (2, 4, 256, 64), dtype)
    (dx,) = g.gradient(g.sum(g.attention(x, x, x, causal=True, form="fused")), [x])
    for name, products in (("attention", 64), ("attention_gradient", 112)):
        found = sass(cuobjdump, name, dx, architecture)
        assert found["HMMA"] == products
        assert found["LDSM"] >= products // 2
        assert found["LDGSTS"] > 0
        assert not found["LDL"]
        assert not found["STL"]
    wide = g.parameter("wide", (2, 4, 256, 64))
    (dx,) = g.gradient(g.sum(g.attention(wide, wide, wide, form="fused")), [wide])
    assert not sass(cuobjdump, "attention", dx)["HMMA"]


def loops_over_tiles(text):
    """Return the instructions and the products of each kernel's loop with the most products."""
    found = []
    for part in text.split("Function : ")[1:]:
        code = re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", part, re.M)
        places = [int(place, 16) for place, _ in code]
        loops = []
        for at, (_, instruction) in enumerate(code):
            branch = re.search(r"\bBRA\b.*?0x([0-9a-f]+)", instruction)
            if branch and (target := int(branch[1], 16)) < places[at]:
                before = zip(places[: at + 1], code[: at + 1], strict=True)
                body = [each for place, (_, each) in before if place >= target]
                loops.append((len(body), sum("HMMA" in each for each in body)))
        counted = [(products, -length) for length, products in loops if products]
        if counted:
            products, length = max(counted)
            found.append((-length, products))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize(
    ("options", "most"),
    [({}, 8), ({"mask": "bool"}, 8.1), ({"causal": True}, 8.1), ({"drop": 0.1}, 16)],
    ids=str,
)
def test_loops_of_attention_have_few_instructions_per_product(
    cuobjdump, options, most, architecture
):
    """Those that hide scores count too, though causal attention runs them in the last tile only."""
    q, k, v = (g.parameter(name, (2, 4, 256, 64), "bfloat16") for name in "qkv")
    if "mask" in options:
        options = {"mask": g.input("mask", (2, 1, 1, 256), options["mask"])}
    (dq,) = g.gradient(g.sum(g.attention(q, k, v, **options)), [q])
    name = "dropped_attention" if "drop" in options else "attention"
    for op, kernels in ((name, 1), (f"{name}_gradient", 2)):
        text = module_text(kernels_of_op(op, dq))
        loops = loops_over_tiles(cuobjdump("--dump-sass", text, architecture))
        assert len(loops) == kernels
        for instructions_of_a_loop, products in loops:
            assert instructions_of_a_loop <= most * products


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_elementwise_kernels_read_16_bytes_at_a_time(cuobjdump, dtype):
    x = g.parameter("x", (64, 1024), dtype)
    found = sass(cuobjdump, "relu", g.relu(x))
    assert found["LDG.E.128"] + found["LDG.E.128.CONSTANT"] > 0
    assert found["STG.E.128"] > 0


def test_offsets_with_negative_strides_are_64_bit():
    """NVRTC 13.0 moves the constant of a 32-bit sum into the address: what wraps without it then
    reads 4 GiB too far, which an H100 refused."""
    x = g.parameter("x", (2, 3, 4))
    text = module_text(kernels_of_op("reverse", g.reverse(x, (0, 2))))
    ptx = compile_ptx(text, 90)
    assert re.search(r"mul\.lo\.s64[^;]*-12", ptx)
    assert not re.search(r"mad\.lo\.s32[^;]*-12", ptx)
