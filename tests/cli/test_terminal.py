"""What a file says never steers the terminal: control characters are printed as escapes."""

import io
import json
import re

import pytest
from cli.running import run
from plans.changed_files import planned, sealed

from graphc import parse_graph
from graphc.cli.terminal import Console, complain, say
from graphc.errors import TextError, escaped

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\u202e\u2066\u200b\x00\udc80"
"""A title, a cleared screen, an eight-bit introducer, text from right to left, half a character."""

STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\udc80]")


def test_escapes_keep_what_is_printed_and_lines():
    assert escaped("layer0/relu é 層 √2\n\tx") == "layer0/relu é 層 √2\n\tx"
    assert escaped("\x1b[2J") == "\\x1b[2J"
    assert not STEERS.search(escaped(EVIL))
    assert escaped(EVIL).encode().decode("unicode_escape")  # it can be encoded, and read again


@pytest.fixture(scope="module")
def evil_plan(tmp_path_factory):
    """A plan whose strings are hostile: of the device, the settings, the goal of a budget."""
    content = json.loads(planned(budget="19200B", recompute="optimal", kernels="numpy").to_json())
    content["device"]["name"] = content["certificate"]["goal"] = EVIL
    content["settings"] = {**content["settings"], EVIL: EVIL, "costs": EVIL}
    path = tmp_path_factory.mktemp("evil") / "plan.json"
    path.write_text(sealed(content))
    return str(path)


@pytest.mark.parametrize(
    "arguments",
    [("plan",), ("plan", "--text"), ("plan", "--json"), ("explain", "--peak"), ("explain", "%1")],
    ids=" ".join,
)
def test_no_command_prints_a_control_character_of_a_plan_file(capsys, evil_plan, arguments):
    command, *options = arguments
    code, out, error = run(capsys, command, evil_plan, *options)
    assert (code, error) == (0, "")
    assert not STEERS.search(out)


def test_on_a_terminal_only_colours_are_controls(monkeypatch, evil_plan, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    code, out, _ = run(capsys, "plan", evil_plan)
    assert code == 0
    assert not STEERS.search(re.sub(r"\x1b\[[\d;]*m", "", out))


def test_a_console_escapes_text_and_keeps_its_colours():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, color_system="standard", width=200)
    console.print(f"[red]{EVIL}[/red] plain")
    shown = file.getvalue()
    assert "\x1b[31m" in shown
    assert not STEERS.search(re.sub(r"\x1b\[[\d;]*m", "", shown))


def test_messages_and_lines_are_escaped(capsys):
    say("x", EVIL)
    complain(EVIL + "y" * 300)
    out, error = capsys.readouterr()
    assert out == f"x {escaped(EVIL)}\n"
    assert error.startswith("graphc: \\x1b]0;owned")
    assert error.endswith(f"{'y' * 90}...\n")
    assert not STEERS.search(error)


def test_errors_about_a_graph_show_its_lines_escaped():
    with pytest.raises(TextError) as error:
        parse_graph(f"graph {{\n  {EVIL.replace(chr(13), '')}\n}}\n")
    assert "\\x1b" in str(error.value)
    assert not STEERS.search(str(error.value))


def test_a_scope_is_a_name_as_the_dsl_takes_it():
    text = "graph {{\n  %x: f32[2] = input()\n  %0: f32[2] = neg(%x)  # {}\n  output y = %0\n}}\n"
    assert parse_graph(text.format("a/b-0")).nodes[0].scope == "a/b-0"
    for scope in ("\x1b[2J", "a//b", "/a", "0"):
        with pytest.raises(TextError, match="is not a valid name"):
            parse_graph(text.format(scope))
