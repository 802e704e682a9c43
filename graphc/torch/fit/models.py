"""Modules on the meta device and their arguments, from a function or a name.

No weights are downloaded or created. A source returns a call for sizes: a module, its loss or
None, and arguments, all on the meta device.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from graphc.errors import DependencyError, GraphcError, OptionError, did_you_mean, quoted
from graphc.torch.budget.trace.without_data import Call


@dataclass(frozen=True)
class Sizes:
    """The sizes of an example; None means the default of the model."""

    batch: int = 1
    seq: int | None = None
    image: int | None = None
    dtype: torch.dtype = torch.float32
    attention: str = "auto"


@dataclass(frozen=True)
class Source:
    """A function that returns a new call for the given sizes.

    `seq` is the default length of a sequence, None without sequences; `longest` is the most.
    Without `has_batch`, the function ignores the batch. `ignored` has the entries of a
    configuration that options replace. `optimizer` is the default. `task` is that of a
    configuration.
    """

    make: Callable[[Sizes], Call]
    seq: int | None = None
    longest: int | None = None
    has_batch: bool = True
    ignored: Mapping[str, str] = field(default_factory=dict)
    optimizer: str = "adamw"
    task: str | None = None


def from_function(function: Callable[..., Any], name: str) -> Source:
    """Return the source of a user's function.

    It may have parameters ``batch``, ``seq`` and ``image``. It returns (module, arguments), and
    optionally keyword arguments and a loss function, which takes the output and the last argument.
    Raises `OptionError` for sizes that it has no parameter for, and for other results.
    """
    known = inspect.signature(function).parameters

    def source(sizes: Sizes) -> Call:
        refuse_attention(sizes, name)
        given = {"batch": sizes.batch, "seq": sizes.seq, "image": sizes.image}
        for key, value in given.items():
            if value not in (None, 1) and key not in known:
                raise OptionError(f"{name} has no parameter {key}; add it, or leave out --{key}")
        given = {key: value for key, value in given.items() if key in known and value is not None}
        with building(name):
            made = function(**given)
        module, args, kwargs, loss_fn = _parts_of(made, name)
        return module.to(sizes.dtype), loss_fn, _floats(args, sizes), kwargs

    default = known["seq"].default if "seq" in known else None
    seq = default if isinstance(default, int) else None
    return Source(source, seq, has_batch="batch" in known)


def _parts_of(made: Any, name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]:
    """Return module, arguments, keyword arguments and loss; raise `OptionError` for others."""
    is_call = isinstance(made, tuple) and 2 <= len(made) <= 4
    module, args, kwargs, loss_fn = (*made, None, None)[:4] if is_call else (None,) * 4
    if (
        not isinstance(module, nn.Module)
        or not isinstance(args, tuple | list)
        or not isinstance(kwargs, Mapping | None)
        or not (callable(loss_fn) or loss_fn is None)
    ):
        raise OptionError(
            f"{name} must return a module and a tuple of arguments, and optionally keyword "
            "arguments and a loss function, as in return module, (x, labels), {}, loss; it "
            f"returned {_told(made)}"
        )
    return module, tuple(args), dict(kwargs or {}), loss_fn


def _told(made: object) -> str:
    """Return the types of what a function returned."""
    if not isinstance(made, tuple):
        return type(made).__name__
    return f"({', '.join(type(each).__name__ for each in made)})"


def from_name(name: str) -> Source:
    """Return the source of an image model of torchvision or timm.

    ``torchvision:`` or ``timm:`` before the name selects the library. Raises `OptionError` with
    near matches for an unknown name.
    """
    library, _, rest = name.rpartition(":")
    known: dict[str, list[str]] = {}
    for each in (library,) if library else ("torchvision", "timm"):
        if each not in ("torchvision", "timm"):
            raise OptionError(f"unknown library {quoted(each)}; choose torchvision or timm")
        with contextlib.suppress(DependencyError):
            known[each] = _names(each)
    found = next((each for each, names in known.items() if rest in names), None)
    if found is None:
        names = {each for names in known.values() for each in names}
        where = f"; {did_you_mean(rest, names)}" if did_you_mean(rest, names) else ""
        raise OptionError(
            f"unknown model {quoted(name)}; give file.py:function, a config.json, or a name of "
            f"the zoo{''.join(f', {each}' for each in known)}{where}"
        )
    return Source(lambda sizes: _classifier(found, rest, sizes))


def _names(library: str) -> list[str]:
    if library == "timm":
        return list(library_of("timm").list_models())
    library_of("torchvision")
    from torchvision.models import list_models

    return list(list_models())


def _classifier(library: str, name: str, sizes: Sizes) -> Call:
    refuse_attention(sizes, name)
    side = sizes.image
    with building(name):
        try:
            module = _image_model(library, name, side)
        except NotImplementedError:  # a constructor computes with tensors
            with torch.device("cpu"):
                module = _image_model(library, name, side).to("meta")
        if library == "timm":
            side = side or module.default_cfg["input_size"][-1]
        x = torch.empty(sizes.batch, 3, side or 224, side or 224, dtype=sizes.dtype)
        labels = torch.empty(sizes.batch, dtype=torch.long)
    return module.to(sizes.dtype).train(), functional.cross_entropy, (x, labels), {}


def _image_model(library: str, name: str, side: int | None) -> nn.Module:
    if library == "timm":
        create = library_of("timm").create_model
        try:
            return create(name, **({"img_size": side} if side else {}))
        except TypeError:  # the model takes images of any size
            return create(name)
    from torchvision.models import get_model

    return get_model(name, weights=None)


def refuse_attention(sizes: Sizes, name: str) -> None:
    """Raise `OptionError` if sizes select an implementation of attention."""
    if sizes.attention != "auto":
        raise OptionError(
            f"--attention {sizes.attention} has no effect on {name}; it selects the implementation "
            "of models of transformers"
        )


def _floats(args: tuple[Any, ...], sizes: Sizes) -> tuple[Any, ...]:
    return tuple(
        each.to(sizes.dtype)
        if isinstance(each, torch.Tensor) and each.is_floating_point()
        else each
        for each in args
    )


@contextlib.contextmanager
def building(name: str) -> Iterator[None]:
    """Create tensors on the meta device, and report other errors than graphc's in one line."""
    try:
        with torch.device("meta"):
            yield
    except GraphcError:
        raise
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        raise OptionError(f"{name} cannot be built: {type(error).__name__}: {text}") from error


def library_of(name: str) -> Any:
    """Return a module of the extra `models`; raise `DependencyError` if it is not installed."""
    try:
        return __import__(name)
    except ImportError:
        raise DependencyError(
            f"this model needs {name}; run pip install {name}, or pip install '.[models]' in a "
            "checkout of graphc"
        ) from None
