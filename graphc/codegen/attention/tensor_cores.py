"""Kernels of fused attention of 16-bit operands on tensor cores: FlashAttention-2 (Dao, 2023).

Products are summed in float32. Weights and gradients of scores are rounded to 16 bits as factors of
the next product. Their layout in registers is already the layout that the next product needs.
"""

from __future__ import annotations

import math

from graphc.codegen.attention.fragments import TensorCoreKernel
from graphc.codegen.node_calls import Launch, Scratch
from graphc.codegen.text.access import indented
from graphc.codegen.text.operands import Places
from graphc.ir.graph import Node


def take(node: Node) -> bool:
    """Return true if these kernels support a node, which depends on its types alone."""
    return node.op.contracts(node)


def attention(node: Node, places: Places) -> Launch:
    """Return the launch of the forward pass, whose blocks own queries and iterate over the keys."""
    kernel = TensorCoreKernel(node, places, "rows", ("q",), ("k", "v"))
    fragments = kernel.wide["y"] // 8
    least = kernel.first_peak
    before = [
        *kernel.load_owned(),
        f"float peak[2] = {{{least}, {least}}}, total[2] = {{}};",
        kernel.sum_of("result", "y"),
    ]
    highest = "highest[e / 2u] = maximum(highest[e / 2u], score[j][e]);"
    raised = [
        "highest[i] = across_quad<Max>(highest[i]);",
        f"const float kept = {kernel.weight('peak[i] - highest[i]')};",
        "peak[i] = highest[i];",
        "total[i] *= kept;",
        f"#pragma unroll\nfor (unsigned t = 0; t < {fragments}u; ++t)\n"
        "    result[t][2u * i] *= kept, result[t][2u * i + 1u] *= kept;",
    ]
    weighed = [
        f"score[j][e] = {kernel.weight('score[j][e] - highest[e / 2u]')};",
        "total[e / 2u] += score[j][e];",
    ]
    if kernel.drops:
        weighed.append(f"score[j][e] = {kernel.where_it_stays('score[j][e]')};")
    each = [
        *kernel.next(),
        kernel.dots("score", "q", "k"),
        kernel.factored,
        *kernel.hidden(["score"], kernel.lowest),
        "float highest[2] = {peak[0], peak[1]};",
        kernel.per_number([highest]),
        f"#pragma unroll\nfor (unsigned i = 0; i < 2u; ++i) {{\n{indented(raised, 1)}\n}}",
        *kernel.drawn,
        kernel.per_number(weighed),
        kernel.sums("result", "score", "v"),
        *kernel.done,
    ]
    after = [_divided(kernel), kernel.stored("y", "result")]
    read = ("q", "k", "v", *kernel.optional)
    return kernel.launch(read, ("y", "stats"), kernel.tiles, before, kernel.first(), each, after)


def _divided(kernel: TensorCoreKernel) -> str:
    """Return a loop that divides each of the thread's rows by its sum of weights and stores the
    row's peak + log(sum)."""
    peak = "peak[i]" if kernel.adds_mask else f"peak[i] * {kernel.number(math.log(2.0))}"
    body = [
        "total[i] = across_quad<Sum>(total[i]);",
        *kernel.unseen_rows,
        f"const float share = {kernel.number(kernel.factor_of_kept)} / total[i];",
        f"#pragma unroll\nfor (unsigned t = 0; t < {kernel.wide['y'] // 8}u; ++t)\n"
        "    result[t][2u * i] *= share, result[t][2u * i + 1u] *= share;",
        "const Index row = base + mine + line + i * 8u;",
        f"if (pair == 0u && row < {kernel.owned}u)",
        f"    {kernel.at('stats', 'row')} = {peak} + logf(total[i]);",
    ]
    return f"#pragma unroll\nfor (unsigned i = 0; i < 2u; ++i) {{\n{indented(body, 1)}\n}}"


def _slopes(kernel: TensorCoreKernel, stats: str, along: str) -> list[str]:
    """Return statements that replace `score` by weights, and `reach` (dy · v) by the gradients of
    scores. `stats` and `along` are C++ for those of a score's row, multiplied as in
    `TensorCoreKernel.scaled`."""
    scale = kernel.number(kernel.attributes.scale * kernel.factor_of_kept)
    reach, kept = (
        kernel.where_it_stays(name) for name in ("reach[j][e]", kernel.raised("score[j][e]"))
    )
    body = [
        f"score[j][e] = {kernel.weight(f'score[j][e] - {stats}')};",
        f"reach[j][e] = score[j][e] * ({reach} * {scale} - {along});",
    ]
    if kernel.drops:
        body.append(f"score[j][e] = {kept};")
    return [
        kernel.factored,
        *kernel.drawn,
        kernel.per_number(body),
        *kernel.hidden(["score", "reach"], kernel.number(0.0)),
    ]


def key_gradients(node: Node, places: Places, along: Scratch) -> Launch:
    """Return the launch that computes dk and dv; its blocks own keys and iterate over the
    queries."""
    kernel = TensorCoreKernel(node, places, "columns", ("k", "v"), ("q", "dy"))
    kernel.with_along(along)
    numbers = ("stats", "along")
    tiles = [
        *kernel.tiles,
        *(
            f"alignas(16) __shared__ float {n}_tile[{kernel.stages}][{kernel.other_tile}];"
            for n in numbers
        ),
    ]
    before = [*kernel.load_owned(), kernel.sum_of("dk_sum", "k"), kernel.sum_of("dv_sum", "v")]
    stats, sums = (f"{name}_tile[stage][j * 8u + pair + e % 2u]" for name in numbers)
    each = [
        *kernel.next(numbers),
        kernel.dots("score", "k", "q"),
        kernel.dots("reach", "v", "dy"),
        *_slopes(kernel, stats, sums),
        kernel.sums("dv_sum", "score", "dy"),
        kernel.sums("dk_sum", "reach", "q"),
        *kernel.done,
    ]
    after = [kernel.stored("dk", "dk_sum"), kernel.stored("dv", "dv_sum")]
    inputs = ("dy", "q", "k", "v", "stats", "along", *kernel.optional)
    return kernel.launch(inputs, ("dk", "dv"), tiles, before, kernel.first(numbers), each, after)


def query_gradient(node: Node, places: Places, along: Scratch) -> Launch:
    """Return the launch that computes dq; its blocks own queries and iterate over the keys."""
    kernel = TensorCoreKernel(node, places, "rows", ("q", "dy"), ("k", "v"))
    kernel.with_along(along)
    own = [
        "const Index row = base + mine + line + i * 8u;",
        f"if (row < {kernel.owned}u) {{",
        f"    own_stats[i] = {kernel.scaled('stats')};",
        f"    own_along[i] = {kernel.scaled('along')};",
        "}",
    ]
    before = [
        *kernel.load_owned(),
        "float own_stats[2] = {}, own_along[2] = {};",
        f"#pragma unroll\nfor (unsigned i = 0; i < 2u; ++i) {{\n{indented(own, 1)}\n}}",
        kernel.sum_of("dq_sum", "q"),
    ]
    each = [
        *kernel.next(),
        kernel.dots("score", "q", "k"),
        kernel.dots("reach", "dy", "v"),
        *_slopes(kernel, "own_stats[e / 2u]", "own_along[e / 2u]"),
        kernel.sums("dq_sum", "reach", "k"),
        *kernel.done,
    ]
    inputs = ("dy", "q", "k", "v", "stats", "along", *kernel.optional)
    after = [kernel.stored("dq", "dq_sum")]
    return kernel.launch(inputs, ("dq",), kernel.tiles, before, kernel.first(), each, after)
