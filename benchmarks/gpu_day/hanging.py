"""A test that never ends, for INJECT=hang of run.sh."""

import time


def test_that_hangs():
    time.sleep(3600)
