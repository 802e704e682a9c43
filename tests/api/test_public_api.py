"""The public names, and that each says what it is."""

import inspect

import graphc as g


def test_names_are_sorted_and_exist():
    assert g.__all__ == sorted(g.__all__)
    assert all(hasattr(g, name) for name in g.__all__)


def test_every_public_function_and_class_has_a_docstring():
    assert len(g.__all__) > 50
    for name in g.__all__:
        thing = getattr(g, name)
        if callable(thing):
            assert inspect.getdoc(thing), name


def test_public_names_of_the_design_exist():
    options = inspect.signature(g.compile).parameters
    assert {"loss", "optimizer", "recompute", "allocate", "device", "seed", "outputs"} <= set(
        options
    )
    for name in ("input", "parameter", "scope", "mirror", "keep", "gradient", "linear", "relu"):
        assert name in g.__all__
    program = g.compile(outputs=[g.tanh(g.input("x", (2,)))])
    for name in ("step", "plan", "parameters", "save", "load"):
        assert hasattr(program, name), name


def test_importing_needs_no_accelerator_and_no_extra():
    import subprocess
    import sys

    heavy = ["cupy", "torch", "sklearn", "matplotlib", "onnx", "ortools"]
    code = f"import graphc, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
