"""Planning and loading leave stderr empty: torch's own messages are hidden."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

HEAD = """
import torch, graphc
from torch import nn
x = torch.randn(4, 8)
"""

PLANNED = """
class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    def forward(self, x):
        return self.layers(x).square().mean()

graphc.torch.plan(Module(), (x,))
"""

LOGGING = """
import logging, warnings
logging.getLogger().addHandler(logging.NullHandler())

class Module(nn.Linear):
    def forward(self, x):
        logging.info("a message")
        print(x)
        return super().forward(x).square().mean()

step = graphc.torch.plan(Module(8, 8), (x,))
step(x).backward()
warnings.filterwarnings("ignore", "this step plans every new size")
step(torch.randn(5, 8)).backward()
assert torch._dynamo.utils.get_compilation_metrics()
"""

LOADED = """
graphc.torch.load(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), (x,))
"""

REFUSED = """
class Module(nn.Module):
    def forward(self, x):
        return x * 2 if float(x.sum()) > 0 else x

try:
    graphc.torch.load(Module(), (x,))
except graphc.errors.TorchError as error:
    assert "torch.export failed" in str(error)
else:
    raise AssertionError("not refused")
"""


@pytest.fixture
def run(tmp_path):
    """Runs a program with an empty cache, so that planning measures."""
    return lambda program, **variables: _run(program, XDG_CACHE_HOME=str(tmp_path), **variables)


def _run(program, **variables):
    found = subprocess.run(
        [sys.executable, "-c", HEAD + program], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found


@pytest.mark.parametrize("program", [LOADED + REFUSED + PLANNED, LOGGING], ids=["all", "logging"])
def test_nothing_is_printed(run, program):
    found = run(program)
    assert (found.stdout, found.stderr) == ("", "")


def test_messages_that_the_user_asks_for_remain(run):
    assert "profiler_start" in run(PLANNED, KINETO_LOG_LEVEL="5").stderr
