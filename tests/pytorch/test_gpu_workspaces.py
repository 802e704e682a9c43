"""Products copy the operands that BLAS cannot read."""

import pytest

torch = pytest.importorskip("torch")

from graphc.torch.fit.gpu_workspaces import workspace_bytes  # noqa: E402

aten = torch.ops.aten


def test_expanded_and_strided_operands_are_copied():
    full, expanded = torch.empty(8, 4), torch.empty(1, 1).expand(8, 4)
    assert workspace_bytes(aten.mm.default, (full, full.t())) == 0
    assert workspace_bytes(aten.mm.default, (full[:, :3], full[:3].t())) == 0
    assert workspace_bytes(aten.mm.default, (expanded, full.t())) == 8 * 4 * 4
    assert workspace_bytes(aten.mm.default, (expanded.t(), expanded)) == 2 * 8 * 4 * 4
    assert workspace_bytes(aten.addmm.default, (expanded[0], full, full[:, ::2].t())) == 8 * 2 * 4
    assert workspace_bytes(aten.bmm.default, (full.expand(2, 8, 4), full.t().expand(2, 4, 8))) == 0
    assert workspace_bytes(aten.add.Tensor, (expanded, expanded)) == 0
