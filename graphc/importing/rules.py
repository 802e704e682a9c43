"""A registry of import rules: functions that convert operators of a framework into values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from pkgutil import iter_modules
from typing import Generic, TypeVar

AnyCall = TypeVar("AnyCall")
AnyResult = TypeVar("AnyResult")
Function = TypeVar("Function", bound=Callable[..., object])


class Rules(Generic[AnyCall, AnyResult]):
    """Import rules by domain and operator, registered by the modules of a package.

    The first lookup imports these modules, so that they can import the registry.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._registered: dict[tuple[str, str], Callable[[AnyCall], AnyResult]] = {}

    def rule(self, *operators: str, domain: str = "") -> Callable[[Function], Function]:
        """Return a decorator that registers a function for these operators."""

        def register(function: Function) -> Function:
            for operator in operators:
                self._registered[domain, operator] = function  # type: ignore[assignment]
            return function

        return register

    def find(self, operator: str, domain: str = "") -> Callable[[AnyCall], AnyResult] | None:
        """Return the rule of an operator, or None if there is none."""
        return self._loaded.get((domain, operator))

    @property
    def operators(self) -> set[str]:
        """Return the names of all operators that have a rule."""
        return {operator for _, operator in self._loaded}

    @cached_property
    def _loaded(self) -> dict[tuple[str, str], Callable[[AnyCall], AnyResult]]:
        for module in iter_modules(import_module(self._package).__path__):
            import_module(f"{self._package}.{module.name}")
        return self._registered
