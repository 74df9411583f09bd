"""Versions of torch whose compiler cannot trace fastbert: their graphs are left, results stay."""

import pytest
import torch

from fastbert.ops import compiling
from fastbert.ops.compiling import is_exporting, outside_old_graphs


# An old torch can be what it is only.
@pytest.fixture(params=[True, False] if compiling._TRACES else [False], ids=str)
def traces(request, monkeypatch):
    monkeypatch.setattr(compiling, "_TRACES", request.param)
    return request.param


def test_only_export_counts_as_exporting(traces):
    class Module(torch.nn.Module):
        def forward(self, x):
            return x + 1 if is_exporting() else x - 1

    module, x = Module(), torch.zeros(2)
    assert not is_exporting()
    assert torch.equal(torch.compile(module, backend="eager", fullgraph=True)(x), x - 1)
    for strict in (False, True):
        assert torch.equal(torch.export.export(module, (x,), strict=strict).module()(x), x + 1)


def test_old_graphs_are_left(traces):
    compiled = []

    @outside_old_graphs
    def double(x, *, offset):
        """Return twice x."""
        compiled.append(torch.compiler.is_compiling())
        return 2 * x + offset

    def function(x):
        return double(x + 1, offset=3) - 1

    x = torch.arange(3.0)
    assert double.__doc__ == "Return twice x."
    assert torch.equal(torch.compile(function, backend="eager")(x), 2 * x + 4)
    assert compiled == [traces]
    if not traces:
        torch.compiler.reset()
        with pytest.raises(torch._dynamo.exc.Unsupported, match=r"torch 2\.12"):
            torch.compile(function, backend="eager", fullgraph=True)(x)
    torch.compiler.reset()
