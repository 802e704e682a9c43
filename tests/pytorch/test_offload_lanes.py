"""Copies on a GPU by a stand-in for torch.cuda: what waits for what, and pinned memory."""

import gc
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from graphc.errors import TorchError  # noqa: E402
from graphc.torch.budget.host.host_memory import Lease  # noqa: E402
from graphc.torch.budget.host.lanes import PAGE, PlainCopies, Streams, lanes_of  # noqa: E402

GPU = torch.device("cuda:0")


class Stream:
    """Records what it is told, in one list for all streams."""

    def __init__(self, name, told):
        self.name, self.told = name, told

    def wait_event(self, event):
        self.told.append((self.name, "waits for", event.name))

    def record_event(self):
        name = f"{self.name} {len(self.told)}"
        self.told.append((self.name, "records", name))
        return Event(name, self.told)


class Event:
    def __init__(self, name, told):
        self.name, self.told = name, told

    def synchronize(self):
        self.told.append(("host", "waits for", self.name))


class Runtime:
    """CUDA's functions to pin memory."""

    def __init__(self, told):
        self.told, self.code = told, 0

    def cudaHostRegister(self, address, size, flags):  # noqa: N802
        self.told.append(("register", address, size))
        return self.code

    def cudaHostUnregister(self, address):  # noqa: N802
        self.told.append(("unregister", address))
        return 0


@pytest.fixture
def told(monkeypatch):
    found = []
    names = iter(["out", "in"])
    runtime = Runtime(found)
    stand_ins = {
        "Stream": lambda _: Stream(next(names), found),
        "stream": lambda stream: nullcontext(found.append((stream.name, "is current"))),
        "current_stream": lambda _: Stream("compute", found),
        "is_current_stream_capturing": lambda: False,
        "device": lambda _: nullcontext(),
        "synchronize": lambda _: found.append(("synchronize",)),
        "cudart": lambda: runtime,
    }
    for name, function in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, function)
    return found


def test_a_copy_starts_after_the_work_so_far_and_computation_waits_for_it(told):
    lanes = Streams(GPU)
    to, source = torch.zeros(4), torch.ones(4)
    earlier = Event("earlier", told)
    event = lanes.begin("out", to, source, [earlier])
    lanes.wait(event)
    assert told == [
        ("compute", "records", "compute 0"),
        ("out", "waits for", "compute 0"),
        ("out", "waits for", "earlier"),
        ("out", "is current"),
        ("out", "records", event.name),
        ("compute", "waits for", event.name),
    ]
    assert torch.equal(to, source)


def test_reused_host_bytes_are_written_after_they_were_read(told):
    returned = []
    lease = Lease(torch.zeros(512, dtype=torch.uint8), Streams(GPU), returned.append)
    one, other = torch.ones(32), torch.full((32,), 2.0)
    lease.begin_out(one, 5, 0, 128)
    lease.end_out(5)
    made = lease.begin_in(5, torch.device("cpu"))
    lease.end_in(5)
    assert torch.equal(made, one)
    (read,) = (each[2] for each in told if each[:2] == ("in", "records"))
    del told[:]
    lease.begin_out(other, 6, 64, 128)
    assert ("out", "waits for", read) in told
    del told[:]
    lease.begin_out(one, 7, 256, 128)
    assert ("out", "waits for", read) not in told
    lease.close()
    assert sum(each[:2] == ("host", "waits for") for each in told) == 2
    assert len(returned) == 1


def test_a_captured_step_is_refused(told, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(TorchError, match="a CUDA graph does not capture"):
        Streams(GPU).begin("in", torch.zeros(1), torch.zeros(1), ())


def test_pinned_memory_has_pages_of_its_own_until_it_is_freed(told):
    made = Streams(GPU).memory(3 * PAGE + 5)
    ((_, address, size),) = told
    assert made.shape == (3 * PAGE + 5,)
    assert (made.data_ptr(), size) == (address, 4 * PAGE)
    assert address % PAGE == 0
    del made
    gc.collect()
    assert told[1:] == [("synchronize",), ("unregister", address)]


def test_memory_that_cannot_be_pinned(told, monkeypatch):
    lanes = Streams(GPU)
    torch.cuda.cudart().code = 2
    with pytest.raises(TorchError, match=r"5 bytes .* cannot be pinned \(CUDA error 2\)"):
        lanes.memory(5)


def test_lanes_by_device(told):
    assert isinstance(lanes_of(torch.device("cpu")), PlainCopies)
    assert isinstance(lanes_of(GPU), Streams)
