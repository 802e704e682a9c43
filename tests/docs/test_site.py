"""The site of the documents: every public name, every page, no link that leads nowhere."""

import inspect
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from docs.snippets import ROOT

import graphc
from graphc import errors

REFERENCE = ROOT / "docs" / "reference"
CONFIGURATION = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def shown():
    """The names that the pages of the reference show, as often as they do."""
    pages = [page.read_text() for page in REFERENCE.glob("*.md")]
    return re.findall(r"^::: graphc\.([\w.]+)$", "\n".join(pages), re.MULTILINE)


def test_every_public_name_is_in_the_reference_once():
    names = shown()
    assert len(names) == len(set(names))
    assert set(graphc.__all__) - {"onnx", "optim", "torch"} <= set(names)
    assert {f"onnx.{name}" for name in graphc.onnx.__all__} <= set(names)
    classes = inspect.getmembers(errors, inspect.isclass)
    raised = {name for name, kind in classes if issubclass(kind, errors.GraphcError)}
    assert raised <= {name.removeprefix("errors.") for name in names}
    optimizers = {kind.__name__ for kind in graphc.optim.OPTIMIZERS.values()} | {"Schedule"}
    assert {f"optim.{name}" for name in optimizers} <= set(names)


def test_every_name_of_the_reference_is_public_and_documented():
    for name in shown():
        thing = graphc
        for part in name.split("."):
            thing = getattr(thing, part)
        assert inspect.getdoc(thing), name
        assert len(inspect.getdoc(thing)) > 20, name


def test_every_op_says_what_it_takes():
    """More than a name: a shape, a dtype, a unit, an error, or its formula."""
    words = re.compile(r"\(.*\)|shape|dtype|axis|axes|bool|number|scalar|broadcast")
    for name in graphc.__all__:
        thing = getattr(graphc, name)
        if inspect.isfunction(thing) and thing.__module__.startswith("graphc.ops."):
            assert words.search(inspect.getdoc(thing)), name


def paths(entries):
    """The pages of a navigation."""
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            if isinstance(target, str):
                yield target
            else:
                yield from paths(target)


def test_every_page_is_in_the_navigation_and_in_the_list_of_documents():
    listed = set(paths(CONFIGURATION["nav"]))
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert listed == pages | {path.name for path in ROOT.glob("*.md")}
    table = (ROOT / "docs" / "README.md").read_text()
    for page in pages - {"docs/README.md"}:
        assert f"]({page.removeprefix('docs/')})" in table


def test_the_reference_of_the_command_line_is_current():
    page = (ROOT / "docs" / "cli.md").read_text()
    assert runpy.run_path(str(ROOT / "docs" / "cli.py"))["renewed"](page) == page


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.anchors |= {found.get("id"), found.get("name")}
        self.links += [found[key] for key in ("href", "src") if found.get(key)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built in a copy of the checkout; the copy's folder."""
    pytest.importorskip("zensical", reason="zensical builds the site")
    copied = tmp_path_factory.mktemp("checkout") / "graphc"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "tests", "__pycache__", "*.egg-info")
    shutil.copytree(ROOT, copied, ignore=ignored)
    done = build(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    return copied


def build(checkout):
    command = [sys.executable, "docs/build.py"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


@pytest.mark.slow
def test_the_site_shows_every_public_name(site):
    pages = [Page(path) for path in (site / "build/site/docs/reference").glob("*.html")]
    anchors = set().union(*(page.anchors for page in pages))
    assert {f"graphc.{name}" for name in shown()} <= anchors
    (text,) = ((site / "build/site/docs/reference/programs.html").read_text(),)
    for name in inspect.signature(graphc.compile).parameters:
        assert f"<code>{name}</code>" in text


@pytest.mark.slow
def test_every_link_of_the_site_leads_somewhere(site):
    root = site / "build" / "site"
    pages = {path.resolve(): Page(path) for path in root.rglob("*.html") if path.name != "404.html"}
    followed = 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), (path, link)
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, (path, link)
            followed += 1
    assert followed > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    ["[away](nowhere.md)", "[away](training.md#nowhere)", "::: graphc.nowhere", "[away][nowhere]"],
)
def test_a_fault_in_a_page_fails_the_build(site, fault):
    page = Path(site / "docs" / "gpu.md")
    before = page.read_text()
    page.write_text(f"{before}\n{fault}\n")
    done = build(site)
    page.write_text(before)
    assert done.returncode == 1
    assert "nowhere" in done.stdout
