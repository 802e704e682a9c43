"""A wrapper that looks like its module: class, attributes, signature, and keys of the state.

Trainers look at the class of a model, at the signature of ``forward`` and at attributes such as
``config``, and save its ``state_dict``. The wrapper shares the dictionaries in which the module
registers parameters, buffers and children, so names have no prefix.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn

SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_modules",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
"""Attributes that a wrapper shares with its module."""

LOSS = "loss_fn"
"""Name under which a wrapper registers a loss that is a module."""


class Transparent(nn.Module):  # type: ignore[misc]
    """A module that is called in place of another one; ``isinstance`` sees the module's class.

    A `loss_fn` that is a module is a child of the wrapper, besides the children of the module.
    """

    def __init__(self, module: nn.Module, loss_fn: Callable[..., Any] | None) -> None:
        super().__init__()
        # Registered attributes would prefix the names of parameters.
        self.__dict__.update(module=module, loss_fn=loss_fn, training=module.training)
        self._share()

    def _share(self) -> None:
        """Share the registries of the module, and show its signature."""
        module, loss_fn = self.module, self.loss_fn
        self.__dict__.update({name: getattr(module, name) for name in SHARED})
        if isinstance(loss_fn, nn.Module):
            name = _unused(LOSS, module._modules)
            self.__dict__["_modules"] = {**module._modules, name: loss_fn}
        elif loss_fn is None:
            called = partial(type(self).forward, self)
            called.__signature__ = inspect.signature(module.forward)  # type: ignore[attr-defined]
            self.__dict__["forward"] = called

    @property
    def __class__(self) -> type:
        """The class of the module."""
        return type(self.__dict__.get("module", self))

    @__class__.setter
    def __class__(self, value: type) -> None:
        """Add the bases of a class that the module's class has not, as FSDP2 adds its own."""
        added = (base for base in value.__bases__ if not issubclass(type(self.module), base))
        made = type(value.__name__, (*added, type(self)), {**vars(value)})
        object.__dict__["__class__"].__set__(self, made)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "module" not in self.__dict__:
                raise
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute: of the wrapper if it has one of that name, else as for the module."""
        if name in self.__dict__:
            self.__dict__[name] = value
        elif self._is_of_module(name):
            setattr(self.module, name, value)
        else:
            super().__setattr__(name, value)

    def _is_of_module(self, name: str) -> bool:
        """Return whether the module, and not the wrapper, has a plain attribute or property."""
        module = self.__dict__.get("module")
        if module is None or hasattr(type(self), name):
            return False
        return name in vars(module) or isinstance(getattr(type(module), name, None), property)

    def __dir__(self) -> list[str]:
        return sorted({*dir(type(self)), *self.__dict__, *dir(self.module)})

    def _wrapped(self) -> Iterator[nn.Module]:
        """Yield the module, and the loss if it is a module."""
        yield self.module
        if isinstance(self.loss_fn, nn.Module):
            yield self.loss_fn

    def train(self, mode: bool = True) -> Any:
        """Set the module to training or, if `mode` is false, to evaluation."""
        self.training = mode
        for each in self._wrapped():
            each.train(mode)
        return self

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """Call the function with every module, the innermost first."""
        for each in self._wrapped():
            each.apply(fn)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        for each in self._wrapped():
            each._apply(fn, recurse)
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.module._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        own = self._modules.keys() - self.module._modules.keys()
        if own:  # the module would report the keys of the loss as unexpected
            others = tuple(f"{prefix}{name}." for name in own)
            state_dict = {k: each for k, each in state_dict.items() if not k.startswith(others)}
        self.module._load_from_state_dict(state_dict, prefix, *rest)


def _unused(name: str, names: Mapping[str, object]) -> str:
    """Return the name, with underscores appended until no module has it."""
    return name if name not in names else _unused(f"{name}_", names)
