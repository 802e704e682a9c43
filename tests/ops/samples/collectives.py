"""Collectives of one rank, and copies to the host and back; tests/runtime/ranks compares
collectives of several ranks with NumPy."""

from ops.samples.sample import M, Sample

import graphc as g
from graphc.ops.host_copy import begin_copy_to_device, begin_copy_to_host, finish_copy


def there_and_back(x):
    return finish_copy(begin_copy_to_device(finish_copy(begin_copy_to_host(x))))


SAMPLES = [
    Sample("all_reduce", lambda x: g.all_reduce(x, 1), (M,), lambda x: x, {"x": {"dy"}}),
    Sample("reduce_scatter", lambda x: g.reduce_scatter(x, 1), (M,), lambda x: x, {"x": {"dy"}}),
    Sample("all_gather", lambda x: g.all_gather(x, 1), (M,), lambda x: x, {"x": {"dy"}}),
    Sample(
        "arrival", lambda x: g.all_reduce(x, 1), (M,), lambda x: x, {"x": {"dy"}, "reads": set()}
    ),
    Sample("broadcast", lambda x: g.broadcast(x, 1), (M,), lambda x: x),
    Sample("copy_to_host", there_and_back, (M,), lambda x: x),
    Sample("copy_to_device", there_and_back, (M,), lambda x: x),
]
