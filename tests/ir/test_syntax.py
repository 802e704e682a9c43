"""Threads that read expressions at the same time."""

import gc
import sys
import threading

import pytest

from graphc.ir.expression import parse


class Litter:
    """Garbage whose collection runs Python code, in which threads take turns."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        for _ in range(50):
            pass


@pytest.fixture
def busy():
    """Threads that take turns, and a collector that works, as often as can be."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(20)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


def test_threads_read_expressions_beside_each_other(busy):
    """Without a lock CPython 3.11.7 raises a SystemError in one thread or more (gh-106905)."""
    errors = []

    def read(terms, calls):
        if calls:
            return read(terms, calls - 1)
        try:
            for _ in range(100):
                for _ in range(30):
                    Litter()
                assert len(parse("x" + " + 1" * terms).instructions) == terms
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read, args=(n, n)) for n in (1, 40, 7, 90)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
