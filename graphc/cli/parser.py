"""A command line parser whose errors are one line and suggest the nearest valid name."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from graphc.cli.terminal import complain
from graphc.errors import OptionError, did_you_mean, given_twice, quoted

MEMORY = ("--memory", "--gpu-memory", "--vram")
"""Option names that users try for the memory of a device, such as a graphics card."""

OTHER_NAMES = {"--plot": "--curve", "--gpu": "--device"}
"""Option names that users try, and those here, which are not similar to them."""


class Parser(argparse.ArgumentParser):
    """argparse's parser with other messages; parsers of commands have this class, too."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.given: dict[str, str] = {}
        """Destination → the flag on the command line, present even if the value equals the
        default."""
        self._values: dict[str, Any] = {}

    def error(self, message: str) -> NoReturn:
        """Print an error of one line and exit with code 2."""
        end = "" if message.endswith("?") else ";"
        complain(f"{message}{end} `{self.prog} --help` lists the options", self.prog)
        raise SystemExit(2)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        try:
            found = super()._get_values(action, arg_strings)
        except OptionError as error:  # of a parser of one option
            self.error(error.message)
        if action.option_strings:
            self.given[action.dest] = action.option_strings[-1]
            before = self._values.setdefault(action.dest, found)
            is_list = isinstance(action, argparse._AppendAction)
            # NaN is not equal to itself.
            if before is not found and before != found and not is_list:
                raise argparse.ArgumentError(action, given_twice(before, found))
        return found

    def _tell_given(self, entries: Sequence[str]) -> None:
        """Record the flags on the command line, in the form used there: --fuse, or --no-fuse."""
        for action in self._actions:
            if action.dest not in self.given:
                continue
            forms = [form for form in action.option_strings if form in entries]
            if isinstance(action, argparse.BooleanOptionalAction) and len(forms) > 1:
                self.error(f"give one of {' and '.join(forms)}, not both")
            self.given[action.dest] = next(iter(forms), self.given[action.dest])

    def _card(self, entry: str) -> str:
        """Return the suggestion of the right option for a memory; empty for other entries."""
        name, _, size = entry.partition("=")
        if name not in MEMORY or "--device" not in self._option_string_actions:
            return ""
        return f"; --device selects a GPU by its memory, such as --device {size or '16GB'}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        listed = ", ".join(map(str, action.choices))
        near = did_you_mean(value, map(str, action.choices), before="; ")
        raise argparse.ArgumentError(
            action, f"there is no {quoted(value)}; choose one of: {listed}{near}"
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Return the options and the remaining entries; an unknown option is an error."""
        found, rest = super().parse_known_args(args, namespace)
        self._tell_given(sys.argv[1:] if args is None else args)
        for entry in rest:
            if entry.startswith("-") and entry != "-":
                name = entry.partition("=")[0]
                meant = OTHER_NAMES.get(name, name)
                meant = meant if meant in self._option_string_actions else name
                near = self._card(entry) or did_you_mean(
                    meant, self._option_string_actions, before="; "
                )
                key = name[2:]
                if not near and "settings" in found and key.isidentifier() and len(key) < 50:
                    near = f"; arguments of the model are given as {key}=..."
                self.error(f"unknown option {quoted(name)}{near}")
        return found, rest
