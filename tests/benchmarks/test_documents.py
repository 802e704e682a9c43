"""Figures in the documents are put there by a script, from files that say where they are from."""

import json
import re

import documents
import pytest
from report import RESULTS

FILES = sorted([*RESULTS.glob("*.json"), *(documents.ROOT / "docs" / "figures").glob("*.json")])


@pytest.mark.parametrize("name", documents.DOCUMENTS)
def test_writing_the_figures_again_changes_nothing(name):
    path = documents.ROOT / name
    text = path.read_text()
    assert documents.BLOCK.search(text)
    assert documents.renewed(text, path.parent) == text


def test_every_block_is_in_a_document_once():
    texts = [(documents.ROOT / name).read_text() for name in documents.DOCUMENTS]
    found = [block[2] for text in texts for block in documents.BLOCK.finditer(text)]
    assert sorted(found) == sorted(documents.BLOCKS)
    assert sum(text.count("<!-- figures: ") for text in texts) == len(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_result_file_says_when_where_with_what_and_of_which_commit(path):
    content = json.loads(path.read_text())
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", content["date"])
    assert re.fullmatch(r"[0-9a-f]{7,40}", content["commit"])
    assert content["machine"]
    assert re.fullmatch(r"3\.\d+\.\d+", content["python"])
    assert content["versions"]
    assert all(content["versions"].values())


def test_there_are_result_files():
    assert {path.name for path in FILES} >= {name for name, _ in documents.BLOCKS.values()}


CIRCUMSTANCES = {
    "date": "2001-02-03", "commit": "abcdef1", "machine": "a slate", "python": "3.99.1",
    "versions": {"chalk": "1.5"},
}  # fmt: skip
TEXT = """Before.

<!-- figures: step times -->
old
<!-- end of figures -->

After, 0.13 of it.
"""


def test_a_block_is_made_from_its_file_and_nothing_else_is_touched(tmp_path):
    rows = [{"network": "mlp", "ratio": 0.125}, {"network": "lstm", "ratio": 2.0}]
    (tmp_path / "step_time.json").write_text(json.dumps({**CIRCUMSTANCES, "rows": rows}))
    found = documents.renewed(TEXT, documents.ROOT / "docs", tmp_path)
    assert found == TEXT.replace(
        "old\n",
        """
Step time divided by the step time of torch eager:

| network | ratio |
|---|---|
| mlp | 0.12 |
| lstm | 2.00 |

([step_time.json](../benchmarks/results/step_time.json): 2001-02-03, commit abcdef1, a slate, \
Python 3.99.1, chalk 1.5.)

""",
    )


def test_step_times_have_a_column_for_what_the_file_has():
    rows = [
        {"network": "mlp", "ratio": 0.125, "ratio_compiled": 1.5, "torch_resident_bytes": 3 << 30},
        {"network": "lstm", "ratio": None},
    ]
    assert documents.step_times({"rows": rows}).splitlines()[2:] == [
        "| network | ratio | over `torch.compile`'s | torch's MiB |",
        "|---|---|---|---|",
        "| mlp | 0.12 | 1.50 | 3,072 |",
        "| lstm | - | - | - |",
    ]


def test_medians_worsts_and_shares_are_computed():
    rows = [
        {"network": "a", "holds": True, "arena_bytes": 5, "budget": 5 << 20, "gap": 0.001},
        {"network": "a", "holds": True, "arena_bytes": 6 << 20, "budget": 5 << 20, "gap": 0.003},
        {"network": "b", "holds": False, "arena_bytes": 4, "budget": 5 << 20, "gap": 0.9},
    ]
    for row in rows:
        row["most"] = 7 << 20
    only = {"network": "c", "holds": True, "arena_bytes": 5, "budget": 5, "gap": 0.0, "most": 5}
    text = documents.gaps_of_budgets({"rows": [*rows, only]})
    assert text.startswith("Of 4 budgets for 3 models, 2 held. In the 3 cases with a choice")
    assert "at most 0.30 % longer" in text
    assert "worst is b within 5 MiB: 90 %." in text
    instance = {"buffers": 1234, "best fit": 2, "size first": 1.5, "height": 1.0004}
    instances = [{"instance": name, **instance} for name in documents.PACKED.values()]
    zoo = [{"gap": 0.02}, {"gap": 0.0}, {"gap": 0.001}]
    text = documents.heights({"instances": instances, "zoo": zoo})
    assert "| MiniMalloc A | 1,234 | 2.000 | 1.500 | 1.000 |" in text
    assert "by 0.1 %\n(median) and 2.0 % (worst)" in text
