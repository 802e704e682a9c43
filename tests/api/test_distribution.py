"""What is installed, under which name, and what errors say of packages that are missing."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import graphc

ROOT = Path(__file__).parents[2]
CONFIGURATION = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIGURATION["project"]
EXTRAS = PROJECT["optional-dependencies"]
SOURCES = sorted((ROOT / "graphc").rglob("*.py"))
CHANGED = {"NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "XDG_CACHE_HOME"}
UNTRACKED = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "__pycache__")


def name_of(requirement):
    return re.match(r"[\w.-]+", requirement)[0]


def brought_by(extra):
    """The names of the packages of an extra and of those it refers to."""
    found = set()
    for requirement in EXTRAS[extra]:
        if name_of(requirement) != PROJECT["name"]:
            found.add(name_of(requirement))
        else:
            (others,) = re.findall(r"\[(.*)\]", requirement)
            found.update(*map(brought_by, others.split(",")))
    return found


def test_extras_refer_to_this_distribution_only():
    assert PROJECT["name"] == "graphc-compiler"
    assert "graphc" not in {name_of(r) for extra in EXTRAS.values() for r in extra}
    assert brought_by("gpu") > brought_by("nvrtc") > set()


def test_nothing_tells_to_install_the_package_of_another_project():
    texts = [*SOURCES, *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    assert len(texts) > 100
    for path in texts:
        assert not re.search(r"graphc\[|pip install '?graphc\b(?!-)", path.read_text()), path


def test_errors_name_packages_that_the_extra_they_name_brings():
    told = []
    texts = {path: path.read_text() for path in SOURCES}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)) if "to_install" in text else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "to_install":
                packages, extra = (argument.value for argument in node.args)
                assert set(packages.split()) <= brought_by(extra), path
                told.append(extra)
    assert {"gpu", "cudnn", "nvrtc", "demo", "view"} <= set(told)


def run(*command, cwd, **environment):
    """Run a command that finds nothing of this checkout."""
    clean = {key: value for key, value in os.environ.items() if key not in CHANGED} | environment
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What `make wheel` leaves in dist: the source distribution and the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "checkout", ignore=UNTRACKED)
    run("make", "wheel", f"PYTHON={sys.executable}", f"VENV={folder / 'make'}",
        cwd=folder / "checkout")  # fmt: skip
    stem = f"graphc_compiler-{graphc.__version__}"
    dist = folder / "checkout" / "dist"
    sdist, wheel = dist / f"{stem}.tar.gz", dist / f"{stem}-py3-none-any.whl"
    assert sorted(dist.iterdir()) == sorted([sdist, wheel])
    return sdist, wheel


@pytest.mark.slow
def test_the_wheel_holds_all_of_the_package_and_the_sdist_all_of_the_checkout(built):
    sdist, wheel = built

    def below(folder):
        files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
        return {str(p.relative_to(ROOT)) for p in files if "__pycache__" not in p.parts}

    package = below("graphc")
    modules = {f"{name}.py" for name in CONFIGURATION["tool"]["setuptools"]["py-modules"]}
    assert {".py", ".cuh", ".html", ".js", ".css", ".typed"} <= {
        Path(name).suffix or Path(name).name[2:] for name in package
    }
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert held == package | modules
    with tarfile.open(sdist) as opened:
        held = {name.split("/", 1)[1] for name in opened.getnames() if "/" in name}
    folders = ("graphc", "tests", "docs", "examples", "benchmarks")
    wanted = set().union(*map(below, folders)) | {"pyproject.toml", "README.md", "LICENSE"}
    assert wanted <= held


@pytest.mark.slow
def test_the_wheel_plans_views_and_trains_in_a_new_environment(built, tmp_path):
    _, wheel = built
    run(sys.executable, "-m", "venv", "new", cwd=tmp_path)
    binaries = tmp_path / "new" / "bin"
    run(binaries / "python", "-m", "pip", "install", f"{wheel}[demo]", cwd=tmp_path)
    where = run(binaries / "python", "-c", "import graphc; print(graphc.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path / "new")

    planned = run(binaries / "graphc", "plan", "mlp", "--device", "cuda", "--json", cwd=tmp_path)
    assert '"arena_bytes"' in planned
    run(binaries / "graphc", "view", "mlp", "-o", "plan.html", cwd=tmp_path)
    assert "<script" in (tmp_path / "plan.html").read_text()
    told = run(binaries / "graphc", "train", "digits", "--epochs", "1", cwd=tmp_path)
    assert "accuracy" in told


@pytest.mark.slow
def test_an_installed_package_gets_no_files_and_leaves_none(tmp_path):
    """`make demo`, `pip install .` with a module that is gone, use, and `make docs`.

    A file in the package's folder would keep the folder when the package is uninstalled. Python
    would then import the folder, not the checkout.
    """
    pytest.importorskip("zensical", reason="zensical builds the site")
    checkout, home = tmp_path / "checkout", tmp_path / "home"
    shutil.copytree(ROOT, checkout, ignore=UNTRACKED)
    (checkout / "build" / "lib" / "graphc").mkdir(parents=True)
    (checkout / "build" / "lib" / "graphc" / "renamed.py").touch()  # by an earlier build
    home.mkdir()
    run(sys.executable, "-m", "venv", "--without-pip", "new", cwd=tmp_path)
    binaries = tmp_path / "new" / "bin"
    (packages,) = (tmp_path / "new").glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))

    def files():
        return {path for path in packages.rglob("*") if path.is_file()}

    def install(*options):
        command = [binaries / "python", "-m", "pip", "install", "--no-deps", *options, "."]
        run(*command, cwd=checkout, HOME=str(home))

    def use(*command, cwd=home):
        run(*command, cwd=cwd, HOME=str(home))

    install("--editable")
    use(binaries / "graphc", "plan", "mlp")
    install()
    installed = files()
    own = {path.relative_to(packages) for path in installed if path.suffix != ".pyc"}
    assert own >= {path.relative_to(ROOT) for path in SOURCES}
    assert packages / "graphc" / "renamed.py" not in installed
    use(binaries / "graphc", "plan", "mlp", "layers=100", "hidden=8", "--budget", "2MiB")
    use(binaries / "graphc", "train", "digits", "--epochs", "1")
    use(binaries / "python", "docs/build.py", cwd=checkout)
    assert files() == installed
    assert list((home / ".cache" / "graphc").glob("loops-*/*/*.nbi"))
    install("--editable")
    assert not (packages / "graphc").exists()
    use(binaries / "graphc", "plan", "mlp")
    use(binaries / "python", "docs/build.py", cwd=checkout)
    assert not (packages / "graphc").exists()
