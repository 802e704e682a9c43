"""Atomic writes, used by every writer of graphc: a file is either complete or unchanged.

A regular file is written under a temporary name next to the target, then renamed over it. The
writer holds a lock on that file until the rename. The kernel releases the lock when the process
ends in any way. So an unlocked file with a temporary name was left by a killed writer. This also
holds if processes of several machines or containers share the folder.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from graphc.errors import GraphcError

try:
    import fcntl
except ImportError:
    ON_UNIX = False
else:
    ON_UNIX = True
"""False if there are no locks, owners and modes, and folders cannot be synced."""

PREFIX, SUFFIX = ".graphc-", ".part"
"""Prefix and suffix of names of unfinished files. They are short, so that a target's name may have
any length the file system allows."""

LINKS = 40
"""The maximum number of symbolic links followed, as on Linux."""

UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EPERM)
"""Error numbers of a folder sync that are ignored: its file system or its mode does not allow
it."""


def write_atomically(
    path: str | os.PathLike[str], content: bytes | Iterable[bytes], error: type[GraphcError]
) -> None:
    """Write a file so that a reader, or a kill at any time, finds the old or the new content.

    The content may be an iterable of parts, which are consumed one at a time. Symbolic links are
    followed, and an existing file keeps its mode. If the target is not a regular file, such as a
    pipe or /dev/stdout, the content is written to it directly. Raises `error` on failure; a regular
    file is then unchanged, and no temporary file remains.
    """
    target = _path(path, error)
    parts = (content,) if isinstance(content, bytes) else content
    replaced = True
    try:
        replaced = _is_regular(target)
        if replaced:
            _replace(Path(os.path.realpath(target)), parts)
        else:
            _write_into(target, parts)
    except (OSError, ValueError) as failure:
        rest = (
            "nothing was written; choose an existing, writable folder with free space"
            if replaced
            else "the target is not a regular file and may contain partial output"
        )
        raise error(f"cannot write {str(target)!r}: {_reason(failure)}; {rest}") from None
    if replaced:
        _sync_folder(target, error)


@contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a file, created if missing; other callers wait.

    On systems without locks nobody waits. Raises `OSError` if the file cannot be created.
    """
    with open(path, "ab") as file:
        if ON_UNIX:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_writable(path: str | os.PathLike[str], error: type[GraphcError]) -> None:
    """Raise `error` if a file cannot be written at `path`; called before long computations."""
    target = _path(path, error)
    try:
        needed = Path(os.path.realpath(target)).parent if _is_regular(target) else target
        if not os.access(needed, os.W_OK):
            missing = errno.EACCES if needed.exists() else errno.ENOENT
            raise OSError(missing, os.strerror(missing))
    except (OSError, ValueError) as failure:
        raise error(
            f"cannot save to {str(target)!r}: {_reason(failure)}; choose an existing, writable "
            "folder"
        ) from None


def is_standard_output(path: str | os.PathLike[str]) -> bool:
    """Return True if a path, such as /dev/stdout, refers to the standard output of this process."""
    return _own_descriptor(os.fspath(path)) == 1


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Return True if a path is a regular file or does not exist: no pipe, device or folder."""
    try:
        return _is_regular(Path(path))
    except OSError:
        return False


def _path(path: str | os.PathLike[str], error: type[GraphcError]) -> Path:
    try:
        return Path(path)
    except TypeError:
        raise error(f"a path must be a string or path object, got {path!r}") from None


def _reason(failure: OSError | ValueError) -> str:
    return getattr(failure, "strerror", None) or str(failure)


def _is_regular(target: Path) -> bool:
    """Return True if a path is a regular file or does not exist; raises `OSError` for a folder."""
    if _own_descriptor(str(target)) is not None:
        return False
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return True
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return stat.S_ISREG(mode)


def _own_descriptor(path: str) -> int | None:
    """Return the descriptor of this process that a path refers to, as /dev/stdout does.

    If standard output is a file, reopening such a path would start at the beginning of that file.
    """
    own = os.path.realpath("/proc/self/fd")
    for _ in range(LINKS):
        folder, name = os.path.split(path)
        if name.isdecimal() and os.path.realpath(folder) == own:
            return int(name)
        if not os.path.islink(path):
            return None
        path = os.path.join(folder, os.readlink(path))
    return None


def _write_into(target: Path, parts: Iterable[bytes]) -> None:
    """Write to a target that is not a regular file, after flushing standard output and error.

    They are flushed only if the target is one of them.
    """
    own = _own_descriptor(str(target))
    if own is not None:
        for stream in (sys.stdout, sys.stderr):
            if stream:
                stream.flush()
        _write_all(own, parts)
        return
    # No O_CREAT and O_TRUNC: the target exists, and must not become a regular file meanwhile.
    descriptor = os.open(target, os.O_WRONLY | getattr(os, "O_NOCTTY", 0))
    try:
        _write_all(descriptor, parts)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, parts: Iterable[bytes]) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[os.write(descriptor, rest) :]


def _replace(target: Path, parts: Iterable[bytes]) -> None:
    """Write a temporary file beside a regular file, or where no file exists yet, then rename it."""
    _remove_left(target.parent)
    try:
        old = os.stat(target)
    except FileNotFoundError:
        old = None
    while True:
        part = target.with_name(f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}")
        try:
            # The replacement of a private file is private from its first byte.
            with _open_new(part, 0o666 if old is None else 0o600) as file:
                if not _lock(file, part):
                    part.unlink(missing_ok=True)  # its remover may lack permission
                    continue
                if old is not None:
                    _make_like(file, old)
                for content in parts:
                    file.write(content)
                file.flush()
                os.fsync(file.fileno())
                if not ON_UNIX:  # an open file cannot be renamed
                    file.close()
                os.replace(part, target)
                break
        except BaseException:  # Ctrl-C must not leave a file either
            part.unlink(missing_ok=True)
            raise


def _open_new(part: Path, mode: int) -> IO[bytes]:
    """Create a file whose mode is `mode` minus the bits of the process's umask.

    The kernel applies the umask: a process can only read it by changing it for all threads.
    """
    return open(part, "xb", opener=partial(os.open, mode=mode))


def _lock(file: IO[bytes], part: Path) -> bool:
    """Lock a new file; return False if another writer mistook it for an abandoned one."""
    if not ON_UNIX:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody can lock, so nobody removes
        return True
    return _is_at(file.fileno(), part)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _make_like(file: IO[bytes], old: os.stat_result) -> None:
    """Copy mode, and group and owner if permitted, from the file to be replaced."""
    if not ON_UNIX:
        return
    for owner, group in ((-1, old.st_gid), (old.st_uid, -1)):
        with suppress(PermissionError):
            os.fchown(file.fileno(), owner, group)
    os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode) & 0o777)


def _remove_left(folder: Path) -> None:
    """Remove the temporary files in a folder whose writers were killed."""
    if not ON_UNIX:
        return
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.name.endswith(SUFFIX):
                with suppress(OSError):
                    _remove_if_left(Path(entry.path))


def _remove_if_left(part: Path) -> None:
    """Remove an unfinished file unless its writer is alive and holds its lock."""
    # Some network file systems can only lock files opened for writing.
    access = os.O_RDWR if os.access(part, os.W_OK) else os.O_RDONLY
    descriptor = os.open(part, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISREG(os.fstat(descriptor).st_mode) and _is_at(descriptor, part):
            part.unlink()
    finally:
        os.close(descriptor)


def _sync_folder(target: Path, error: type[GraphcError]) -> None:
    """Make the rename durable across a power loss."""
    if not ON_UNIX:
        return
    try:
        descriptor = os.open(Path(os.path.realpath(target)).parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as failure:
        if failure.errno not in UNSUPPORTED:
            raise error(
                f"{str(target)!r} was written, but its folder cannot be synced: "
                f"{_reason(failure)}; a power failure may restore the previous file"
            ) from None
