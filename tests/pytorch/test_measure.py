"""The measured peak of allocations whose sizes are known."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402


def bytes_of(count):
    return torch.empty(count, dtype=torch.uint8)


def test_peak_of_a_sequence_of_allocations():
    from graphc.torch.budget.trace.measure import measured_peak

    table, kept = bytes_of(10_000), []

    def run():
        first, second = bytes_of(1_000), bytes_of(5_000)
        del first
        third = bytes_of(3_000)  # 8,000 are live, the most until now
        del second
        kept.append(bytes_of(4_500))  # 7,500
        fourth = bytes_of(700)  # 8,200
        del third, fourth

    assert measured_peak(run) == 8_200
    assert measured_peak(run, [table, table[:5], table.view(2, -1)]) == 18_200
    assert measured_peak(run, [table, kept[0]], reserve_bytes=70) == 10_000 + 4_500 + 70 + 8_200


def test_peak_of_a_step():
    """Never more than two products at a time: a saved one and its gradient, that and w's."""
    from graphc.torch.budget.trace.measure import measured_peak, storage_bytes

    size = 256
    x, w = torch.randn(size, size), torch.nn.Parameter(torch.randn(size, size))

    def run():
        (x @ w).relu().sum().backward()

    two_and_scalars = 2 * 4 * size**2 + 8
    assert measured_peak(run, [x, w]) == storage_bytes([x, w]) + two_and_scalars
    # the gradient that is there already is added to, by one that is made as the first time
    assert measured_peak(run, [x, w, w.grad]) == storage_bytes([x, w, w.grad]) + two_and_scalars


def test_a_gpu_hands_out_whole_blocks():
    """As its caching allocator counts them; on the CPU each byte is one."""
    from torch._subclasses import FakeTensorMode

    from graphc.torch.budget.trace.measure import allocated_bytes, storage_bytes

    with FakeTensorMode():
        on_gpu = [torch.empty(count, dtype=torch.uint8, device="cuda") for count in (0, 1, 512)]
        rows = torch.empty(1025, 1, dtype=torch.uint8, device="cuda")
    on_gpu.append(rows)
    assert [allocated_bytes(each) for each in on_gpu] == [0, 512, 512, 1536]
    assert storage_bytes([*on_gpu, rows]) == 2560
    assert allocated_bytes(bytes_of(1025)[:3]) == 1025


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11
def test_a_profiler_of_the_user_goes_on(tmp_path, monkeypatch):
    """Nothing is measured within it, and its events are there at the end."""
    module, x = torch.nn.Linear(3, 5), torch.randn(7, 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with torch.profiler.profile() as profiled:
        with pytest.raises(
            TorchError, match=r"profiler, but a profiler is already running; .* only the steps"
        ):
            graphc.torch.plan(module, (x,))
        module(x)
    assert any(event.key == "aten::addmm" for event in profiled.key_averages())
    step = graphc.torch.plan(module, (x,), "knee")
    with torch.profiler.profile():
        step(x).sum().backward()
    assert module.weight.grad is not None


def test_memory_counts_once_wherever_it_is_reached_from():
    """A storage by two of its tensors, and ranges that touch, overlap, or lie in one another."""
    from graphc.torch.budget.trace.measure import bytes_of_ranges, memory_ranges

    x = torch.empty(4, 8)
    assert bytes_of_ranges(memory_ranges([x, x[1:], torch.empty(0)])) == x.nbytes
    ranges = [range(20, 30), range(0, 10), range(22, 25), range(5, 15), range(15, 17)]
    assert bytes_of_ranges(ranges) == len(set().union(*ranges))


def test_an_incomplete_recording_is_made_again(monkeypatch):
    """Where the profiler loses the last events, as seldom on a busy machine."""
    from graphc.torch.budget.trace import measure

    signed, lost = [], measure._sign

    def sign(name):
        signed.append(name)
        if len(signed) > 2 or name == "begin":
            lost(name)

    monkeypatch.setattr(measure, "_sign", sign)
    made = []
    found = measure.until_complete(
        lambda: measure.peaks([lambda: bytes_of(1_000)]), lambda: made.append("again")
    )
    assert found == [1_000]
    assert (len(signed), made) == (4, ["again"])

    monkeypatch.setattr(measure, "_sign", lambda name: None)
    with pytest.raises(TorchError, match="has lost some events"):
        measure.until_complete(lambda: measure.peaks([lambda: bytes_of(1_000)]))
