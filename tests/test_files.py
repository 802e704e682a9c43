"""What writers promise: a file is the old one or the new one, and nothing else stays behind."""

import contextlib
import errno
import os
import stat
import sys
import threading

import pytest

from graphc import files
from graphc.errors import CheckpointError, GraphcError
from graphc.files import check_writable, is_regular, is_standard_output, locked, write_atomically

OLD, NEW = b"old" * 1000, b"new content" * 100_000


def write(path, content=NEW):
    write_atomically(path, content, CheckpointError)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def mask(bits):
    old = os.umask(bits)
    try:
        yield
    finally:
        os.umask(old)


@pytest.mark.parametrize("there", [True, False], ids=["target", "dangling"])
def test_a_symlink_is_followed_to_its_target(tmp_path, there):
    (tmp_path / "disk").mkdir()
    target = tmp_path / "disk" / "run"
    if there:
        target.write_bytes(OLD)
    (tmp_path / "latest").symlink_to("second")
    (tmp_path / "second").symlink_to("disk/run")
    write(tmp_path / "latest")
    assert os.readlink(tmp_path / "latest") == "second"
    assert os.readlink(tmp_path / "second") == "disk/run"
    assert target.read_bytes() == NEW
    assert names_in(tmp_path / "disk") == ["run"]
    assert names_in(tmp_path) == ["disk", "latest", "second"]


def test_a_symlink_to_itself_is_refused_with_the_cause(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(CheckpointError, match=r"symbolic links.*nothing was written"):
        write(tmp_path / "loop")
    assert os.readlink(tmp_path / "loop") == "loop"
    assert names_in(tmp_path) == ["loop"]


def test_a_fifo_is_written_into_and_stays_one(tmp_path):
    fifo, read = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: read.append(fifo.read_bytes()), daemon=True)
    reader.start()
    write(fifo)
    assert stat.S_ISFIFO(fifo.lstat().st_mode)
    reader.join()
    assert read == [NEW]
    assert names_in(tmp_path) == ["fifo"]


def test_a_link_to_a_fifo_is_written_into(tmp_path):
    read = []
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    reader = threading.Thread(
        target=lambda: read.append((tmp_path / "fifo").read_bytes()), daemon=True
    )
    reader.start()
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    reader.join()
    assert read == [NEW]


def test_a_name_of_an_open_pipe_is_written_into():
    """As a shell gives for >(command)."""
    reader, writer = os.pipe()
    write(f"/proc/self/fd/{writer}", b"through the pipe")
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert pipe.read() == b"through the pipe"


def test_a_name_of_an_open_file_is_written_behind_what_is_there(tmp_path):
    """As /dev/stdout is where a shell sends standard output into a file."""
    with open(tmp_path / "out", "wb", buffering=0) as file:
        file.write(b"first ")
        write(f"/proc/self/fd/{file.fileno()}", b"second")
        file.write(b" third")
    assert (tmp_path / "out").read_bytes() == b"first second third"
    assert names_in(tmp_path) == ["out"]


@pytest.fixture
def full(tmp_path):
    """A device that is always full. A root's own, as faulty code would replace the machine's."""
    (tmp_path / "devices").mkdir()
    path = tmp_path / "devices" / "full"
    if os.geteuid() != 0:
        path.symlink_to("/dev/full")
        return path
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 7))
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        pytest.skip("devices cannot be made here")
    return path


def test_writes_to_a_device_succeed_or_name_the_cause(tmp_path, full):
    (tmp_path / "link").symlink_to(full)
    for path in (full, tmp_path / "link"):
        with pytest.raises(CheckpointError, match=r"No space left on device.*not a regular file"):
            write(path)
    assert stat.S_ISCHR(full.stat().st_mode)
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_without_a_reader_is_refused_with_the_cause():
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(CheckpointError, match="Broken pipe"):
        write(f"/proc/self/fd/{writer}")
    os.close(writer)


def test_standard_output_is_known_by_all_its_names(tmp_path):
    (tmp_path / "link").symlink_to("/dev/stdout")
    for path in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", f"/proc/{os.getpid()}/fd/1"):
        assert is_standard_output(path)
    assert is_standard_output(os.fspath(tmp_path / "link"))
    for path in ("/dev/stderr", "/dev/fd/10", "/dev/null", "1", os.fspath(tmp_path / "1")):
        assert not is_standard_output(path)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o444, 0o777])
def test_a_file_that_is_overwritten_keeps_its_mode(tmp_path, mode):
    (tmp_path / "run").write_bytes(OLD)
    (tmp_path / "run").chmod(mode)
    with mask(0o027):
        write(tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == NEW
    assert mode_of(tmp_path / "run") == mode


def another_group():
    """A group that a file may be given to, if there is one besides that of new files."""
    if os.getuid() == 0:
        return 54321
    return next((group for group in os.getgroups() if group != os.getgid()), os.getgid())


def test_a_file_that_is_overwritten_keeps_its_owner_and_group(tmp_path):
    (tmp_path / "run").write_bytes(OLD)
    os.chown(tmp_path / "run", 12345 if os.getuid() == 0 else -1, another_group())
    expected = (tmp_path / "run").stat()
    write(tmp_path / "run")
    found = (tmp_path / "run").stat()
    assert (found.st_uid, found.st_gid) == (expected.st_uid, expected.st_gid)


def test_the_group_is_kept_where_the_owner_may_not_be_given_away(tmp_path, monkeypatch):
    """As for a user who writes over a file that others share."""
    fchown, group = os.fchown, another_group()

    def refuse(descriptor, owner, group):
        if owner != -1:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        fchown(descriptor, owner, group)

    monkeypatch.setattr(os, "fchown", refuse)
    (tmp_path / "run").write_bytes(OLD)
    os.chown(tmp_path / "run", -1, group)
    (tmp_path / "run").chmod(0o660)
    write(tmp_path / "run")
    assert ((tmp_path / "run").stat().st_gid, mode_of(tmp_path / "run")) == (group, 0o660)


def test_the_replacement_of_a_private_file_is_private_from_its_first_byte(tmp_path, monkeypatch):
    (tmp_path / "run").write_bytes(OLD)
    (tmp_path / "run").chmod(0o600)
    seen = []
    open_new = files._open_new

    def open_and_look(part, mode):
        file = open_new(part, mode)
        seen.append(stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        return file

    monkeypatch.setattr(files, "_open_new", open_and_look)
    with mask(0o000):
        write(tmp_path / "run")
    assert seen == [0o600]


@pytest.mark.parametrize("bits", [0o022, 0o077, 0o002])
def test_a_new_file_follows_the_mask_which_is_never_touched(tmp_path, monkeypatch, bits):
    def touched(mask):
        raise AssertionError("another thread would see this mask")

    with mask(bits):
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", touched)
            write(tmp_path / "run")
        assert mode_of(tmp_path / "run") == 0o666 & ~bits


def test_names_as_long_as_the_file_system_allows(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    for name in ("n" * longest, "é" * (longest // 2)):
        write(tmp_path / name, OLD)
        write(tmp_path / name)
        assert (tmp_path / name).read_bytes() == NEW
    with pytest.raises(CheckpointError, match=r"name too long.*nothing was written"):
        write(tmp_path / ("n" * (longest + 1)))
    assert len(names_in(tmp_path)) == 2


def test_a_file_is_synced_before_its_rename_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        status = os.fstat(descriptor)
        events.append((stat.S_ISDIR(status.st_mode), status.st_ino, status.st_size))
        fsync(descriptor)

    def replaced(source, target):
        events.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/run")
    write(tmp_path / "link")
    target = tmp_path / "folder" / "run"
    file, rename, folder = events
    assert file == (False, target.stat().st_ino, len(NEW))
    assert rename == "rename"
    assert folder[:2] == (True, target.parent.stat().st_ino)


def failing_sync_of_folders(monkeypatch, number):
    fsync = os.fsync

    def fail(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)


def test_a_folder_that_cannot_be_synced_is_told_unless_its_kind_never_can(tmp_path, monkeypatch):
    failing_sync_of_folders(monkeypatch, errno.EINVAL)
    write(tmp_path / "run", OLD)
    failing_sync_of_folders(monkeypatch, errno.EIO)
    with pytest.raises(CheckpointError, match="was written, but its folder cannot be synced"):
        write(tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == NEW


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of open files
def test_an_interrupt_at_any_point_leaves_the_old_file_or_the_new_and_nothing_else(tmp_path):
    """One Ctrl-C before each instruction of Python's that writing takes, one after another."""
    path, found = tmp_path / "run", set()
    for point in range(100_000):
        path.write_bytes(OLD)
        done = written_with_interrupt(path, point)
        assert names_in(tmp_path) == ["run"], point
        content = path.read_bytes()
        assert content in (OLD, NEW)
        if done:
            break
        found.add(content)
    assert done
    assert point > 100
    assert found == {OLD, NEW}


def written_with_interrupt(path, point):
    """Whether the file was written before as many instructions as `point` were run."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        if frame.f_code.co_filename != files.__file__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            count += 1
            if count == point + 1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write(path)
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)
    return True


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_leaves_nothing_and_the_old_file_whole(tmp_path, monkeypatch, step):
    def fail(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "run").write_bytes(OLD)
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(CheckpointError, match=r"cannot write .*No space left.*nothing was written"):
        write(tmp_path / "run")
    assert names_in(tmp_path) == ["run"]
    assert (tmp_path / "run").read_bytes() == OLD


def test_a_check_before_the_work_says_what_writing_would(tmp_path):
    (tmp_path / "file").write_bytes(OLD)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("missing/run")
    (tmp_path / "link").symlink_to("new")
    good = ["file", "new", "link"]
    bad = ["missing/run", "lost", "loop", "file/run", ".", "n" * 300, "a\0b"]
    for name in good:
        check_writable(tmp_path / name, GraphcError)
        write(tmp_path / name)
    for name in bad:
        with pytest.raises(CheckpointError) as written:
            write(tmp_path / name)
        with pytest.raises(CheckpointError) as checked:
            check_writable(tmp_path / name, CheckpointError)
        reasons = [str(found.value).split(": ", 1)[1].split(";")[0] for found in (written, checked)]
        assert reasons[0] == reasons[1] != ""
    for path in (3, None):
        with pytest.raises(CheckpointError, match="a path must be a string or path object"):
            check_writable(path, CheckpointError)
        with pytest.raises(CheckpointError, match="a path must be a string or path object"):
            write(path)
    assert names_in(tmp_path) == ["file", "link", "loop", "lost", "new"]


def test_regular_files_are_recognized(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "file").touch()
    assert is_regular(tmp_path / "file")
    assert is_regular(tmp_path / "none")
    for path in (tmp_path / "fifo", tmp_path / "link", tmp_path, "/dev/null", "/dev/stdout"):
        assert not is_regular(path)


@pytest.mark.skipif(not files.ON_UNIX, reason="there are no locks")
def test_a_caller_waits_for_a_held_lock(tmp_path):
    """Both write to the same file, the second one behind the first one's last line."""
    lock, lines, waits = tmp_path / "lock", [], threading.Event()

    def other():
        waits.set()
        with locked(lock):
            lines.append("other")

    with locked(lock):
        thread = threading.Thread(target=other)
        thread.start()
        waits.wait()
        thread.join(timeout=0.05)
        lines.append("first")
    thread.join()
    assert lines == ["first", "other"]
