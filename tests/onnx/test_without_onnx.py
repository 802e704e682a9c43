"""graphc without the package onnx, and before it is asked for."""

import subprocess
import sys


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_an_error_says_what_to_install():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "import graphc\n"
        "try: graphc.onnx.save(graphc.input('x', (2,)), 'x.onnx')\n"
        "except graphc.GraphcError as error: print(type(error).__name__, error)"
    )
    told = run(code)
    assert told.startswith("DependencyError")
    assert "pip install onnx" in told
    assert "'.[onnx]'" in told


def test_it_is_there_after_importing_graphc_alone():
    code = (
        "import graphc, sys\n"
        "graphc.onnx.__all__; print('onnx' in sys.modules)\n"
        "graphc.onnx.save(graphc.full((2,), 1.0), '/dev/null'); print('onnx' in sys.modules)"
    )
    assert run(code).split() == ["False", "True"]
