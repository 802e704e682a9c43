"""Compilation and loading of kernels in LLVM IR.

Code is compiled for the processor of this machine with all of its instructions, and cached in a
folder for later processes. It stays loaded until the process ends; programs share kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from graphc.codegen.llvm.kernel import NativeKernel
from graphc.errors import GraphcError
from graphc.forks import lock_across_forks
from graphc.runtime.kernel_files import machine_code

OPTIMISATION = 2
"""The optimization level of the code generator. No passes over the IR run: they would double the
compile time and make no kernel faster. Kernels are already written with vectors, in single
assignment form, and with loop invariants hoisted."""

_LOCK = lock_across_forks()
_LOADED: dict[str, tuple[int, Any]] = {}
"""Name → the address of a kernel, and the object that keeps its code in memory."""


def addresses(kernels: Iterable[NativeKernel], folder: Path | None) -> dict[str, int]:
    """Return the address of each kernel by name, compiling and caching what `folder` lacks.

    Without a folder, nothing is cached. Raises `GraphcError` if a kernel does not compile.
    """
    texts = {kernel.name: kernel.text for kernel in kernels}
    with _LOCK:
        missing = {name: text for name, text in texts.items() if name not in _LOADED}
        if missing:
            codes = machine_code(missing, _compiler(), "o", folder, _compiled)
            for name, code in codes.items():
                _LOADED[name] = _load(name, code)
        return {name: _LOADED[name][0] for name in texts}


@functools.cache
def _compiler() -> tuple[str, ...]:
    """Return the versions and the processor on which machine code depends, besides the text."""
    _machine()
    return (
        llvmlite.__version__,
        str(llvm.llvm_version_info),
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        llvm.get_host_cpu_features().flatten(),
        str(OPTIMISATION),
    )


@functools.cache
def _machine() -> Any:
    """Return the LLVM target machine for this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=OPTIMISATION,
        reloc="pic",
        codemodel="default",
    )


@functools.cache
def _linker() -> Any:
    return llvm.create_lljit_compiler(_machine(), use_jit_link=True)


def _compiled(text: str) -> bytes:
    machine = _machine()
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise GraphcError(f"a generated kernel does not compile: {error}") from None
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    code: bytes = machine.emit_object(module)
    return code


def _load(name: str, code: bytes) -> tuple[int, Any]:
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    tracker = library.export_symbol(name).link(_linker(), name)
    return tracker[name], tracker
