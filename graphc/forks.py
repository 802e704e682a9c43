"""Locks that are released in a forked child."""

from __future__ import annotations

import os
import threading


def lock_across_forks() -> threading.RLock:
    """Return a lock that a fork acquires first and that both processes release afterwards.

    A child process has only the thread that forked. Otherwise a lock held by another thread would
    stay locked in the child.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
        )
    return lock
