"""What writers leave, who are killed or come in each other's way; and systems without locks."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading

from test_files import NEW, OLD, names_in, write

from graphc import files

WRITER = """
import os, signal, sys, types

sys.modules["graphc"] = package = types.ModuleType("graphc")  # its import takes long
package.__path__ = [sys.argv[3]]
from graphc import files
from graphc.errors import GraphcError

def sync(descriptor):
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    print("syncing", flush=True)
    sys.stdin.readline()

os.fsync = sync
files.write_atomically(sys.argv[1], b"from another process", GraphcError)
"""


def writer(path, fate):
    package = os.path.dirname(files.__file__)
    command = [sys.executable, "-c", WRITER, os.fspath(path), fate, package]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_later_save_removes_files_of_killed_writers(tmp_path):
    for name in ("run", "other"):
        killed = writer(tmp_path / name, "killed")
        killed.communicate()
        assert killed.returncode == -signal.SIGKILL
        assert len(names_in(tmp_path)) == 1  # the second has removed what the first one left
        assert names_in(tmp_path) != [name]
    write(tmp_path / "third")
    assert names_in(tmp_path) == ["third"]


def test_files_of_living_writers_are_kept(tmp_path):
    """Of the same file, of another in the folder, and under another name of the folder."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "alias").symlink_to("folder")
    folder = tmp_path / "folder"
    living = writer(folder / "run", "lives")
    assert living.stdout.readline() == "syncing\n"
    begun = names_in(folder)
    assert len(begun) == 1
    for path in (folder / "run", folder / "other", tmp_path / "alias" / "third"):
        write(path)
    assert names_in(folder) == sorted([*begun, "run", "other", "third"])
    living.communicate("go on\ngo on\n")
    assert living.returncode == 0
    assert (folder / "run").read_bytes() == b"from another process"
    assert names_in(folder) == ["other", "run", "third"]


def test_threads_leave_what_others_have_begun(tmp_path, monkeypatch):
    fsync, begun, go_on = os.fsync, threading.Event(), threading.Event()

    def sync(descriptor):
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            go_on.wait()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    other = threading.Thread(target=write, args=(tmp_path / "slow", OLD))
    other.start()
    begun.wait()
    write(tmp_path / "quick")
    assert len(names_in(tmp_path)) == 2
    go_on.set()
    other.join()
    assert names_in(tmp_path) == ["quick", "slow"]
    assert (tmp_path / "slow").read_bytes() == OLD


def test_a_file_that_was_taken_for_one_left_before_it_was_locked_is_made_anew(
    tmp_path, monkeypatch
):
    """Another save comes between the making of the file and its lock."""
    flock, calls = fcntl.flock, []

    def late(file, operation):
        calls.append(operation)
        if len(calls) == 1:
            assert len(names_in(tmp_path)) == 1
            files._remove_left(tmp_path)
            assert names_in(tmp_path) == []
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    write(tmp_path / "run")
    assert names_in(tmp_path) == ["run"]
    assert (tmp_path / "run").read_bytes() == NEW
    assert len(calls) == 3  # of the file that went, by who removed it, of the second file


def test_a_file_that_somebody_has_taken_and_may_not_remove_does_not_stay(tmp_path, monkeypatch):
    """As in a folder where only their owners may remove files."""
    flock, calls = fcntl.flock, []

    def taken(file, operation):
        calls.append(operation)
        if len(calls) == 1:
            raise BlockingIOError
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", taken)
    write(tmp_path / "run")
    assert names_in(tmp_path) == ["run"]
    assert len(calls) == 2


WITHOUT_LOCKS = """
import os, sys
sys.modules["fcntl"] = None
for name in ("fchmod", "fchown", "O_DIRECTORY", "O_NOCTTY", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
replace = os.replace
def on_windows(source, target):
    assert not any(os.path.samefile(f"/proc/self/fd/{n}", source) for n in range(3, 20)
                   if os.path.exists(f"/proc/self/fd/{n}")), "it is open"
    replace(source, target)
os.replace = on_windows
import graphc
from graphc.files import write_atomically
for content in (b"first", b"second"):
    write_atomically(sys.argv[1], content, graphc.GraphcError)
"""


def test_where_a_system_has_no_locks_graphc_is_imported_and_writes(tmp_path):
    """As on Windows, where an open file is not renamed, and folders are not opened."""
    command = [sys.executable, "-c", WITHOUT_LOCKS, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("", 0)
    assert names_in(tmp_path) == ["run"]
    assert (tmp_path / "run").read_bytes() == b"second"


def test_a_file_system_without_locks_is_written_to_and_nothing_is_removed(tmp_path, monkeypatch):
    left = tmp_path / f"{files.PREFIX}0123456789abcdef{files.SUFFIX}"
    left.write_bytes(OLD)

    def fail(file, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", fail)
    write(tmp_path / "run")
    assert names_in(tmp_path) == [left.name, "run"]


def test_other_files_are_kept(tmp_path):
    name = f"{files.PREFIX}0123456789abcdef{files.SUFFIX}"
    (tmp_path / f"{name}.txt").touch()
    (tmp_path / f"x{name}").touch()
    (tmp_path / name).mkdir()
    (tmp_path / name.replace("0", "1")).symlink_to(f"{name}.txt")
    os.mkfifo(tmp_path / name.replace("0", "2"))
    before = names_in(tmp_path)
    write(tmp_path / "run")
    assert names_in(tmp_path) == sorted([*before, "run"])
    (tmp_path / name.replace("0", "3")).write_bytes(OLD)  # as a killed writer leaves it
    (tmp_path / name.replace("0", "3")).chmod(0o444)
    write(tmp_path / "run")
    assert names_in(tmp_path) == sorted([*before, "run"])
