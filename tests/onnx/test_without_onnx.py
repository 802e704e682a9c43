"""graphc without the package onnx, and before it is asked for."""

import subprocess
import sys

CODE = """
import graphc, sys
graphc.onnx.__all__
print("onnx" in sys.modules)
sys.modules["onnx"] = None
try:
    graphc.onnx.save(graphc.input("x", (2,)), "x.onnx")
except graphc.GraphcError as error:
    print(type(error).__name__, error)
del sys.modules["onnx"]
graphc.onnx.save(graphc.full((2,), 1.0), "/dev/null")
print("onnx" in sys.modules)
"""


def test_it_is_imported_by_the_first_use_which_says_what_to_install():
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, error, after = done.stdout.splitlines()
    assert (before, after) == ("False", "True")
    assert error.startswith("DependencyError")
    assert "pip install onnx" in error
    assert "'.[onnx]'" in error
