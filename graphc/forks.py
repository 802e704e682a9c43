"""Locks that are free in a forked child."""

from __future__ import annotations

import os
import threading


def lock_across_forks() -> threading.RLock:
    """A lock that a fork waits for, so that no other thread is at what it guards meanwhile.

    A child has no thread but the one that forked: a lock that another held would stay taken there.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
