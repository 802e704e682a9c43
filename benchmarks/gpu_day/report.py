"""Turn what run.sh brings back into a result file, which documents.py puts into the docs.

Run: python benchmarks/gpu_day/report.py results.tgz [more.tgz ...] [--output FILE]
Parts of a later archive replace those of an earlier one. The result file has the date, device,
versions and commit, counts of checks and tests by part of docs/gpu-status.md, and all times. Prints
a summary, and exits with 1 if a part, a check or a test failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import RESULTS, write_json

import graphc

STATUS = {
    "every op, its gradient and updates, on a poisoned arena": r"test_op_equals_the_cpu",
    "networks of the zoo against float64 on the CPU": r"test_training_equals_the_cpu",
    "bits under every strategy, captured or not, on 1 to 4 streams": r"test_str(ategies|eams)_",
    "tf32, bf16, fp16 and fp8": r"test_narrow_precisions",
    "bits of kernels against their C++": r"test_kernels_have|test_dropout_draws",
    "reruns bit for bit": r"test_runs_repeat",
    "refused steps": r"test_a_label_out_of_range|test_a_number_that_is_not_finite",
    "copies beside steps, with the same bits": r"test_(copies_beside|(values|states)_on_the_host)",
    "attention in 16 bits against float64": r"test_narrow_attention",
    "NaN in a feed": r"test_nan_in_a_feed",
    "recorded engines of cuDNN, with the same bits": r"test_recorded_engines",
    "labels that do not count, of micro-batches too": r"test_labels_that_do_not_count",
    "steps of several sizes in one arena": r"test_steps_of_several_sizes",
    "a hundred steps without an allocation": r"test_a_hundred_steps",
    "the driver's bytes": r"test_the_driver|test_an_arena|test_a_plan_beyond",
    "the measured link to the host": r"test_the_link_to_the_host",
}
"""Parts of docs/gpu-status.md, and the tests of tests/on_gpu that they are checked by."""

LAUNCHES = 20
"""Longest launches of a step in a result file: op, kernel or kind of call, microseconds, and the
modelled microseconds of the node."""

UNKNOWN = "no GPU"

PACKAGES = ("numpy", "cupy-cuda13x", "nvidia-cublas", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend",
            "nvidia-cuda-nvrtc", "torch")  # fmt: skip


def files_of(archives: Iterable[Path]) -> dict[str, bytes]:
    """The files of all archives by name; the lists of parts are joined."""
    found: dict[str, bytes] = {}
    for path in archives:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                if file is None:
                    continue
                name = Path(member.name).name
                before = found.get(name, b"") if name == "parts" else b""
                found[name] = before + file.read()
    return found


def parsed(files: Mapping[str, bytes]) -> tuple[dict[str, Any], list[str]]:
    """The JSON files, and the names of those that were not written to their end."""
    found, broken = {}, []
    for name, data in files.items():
        if not name.endswith(".json"):
            continue
        try:
            found[name] = json.loads(data)
        except ValueError:
            broken.append(name)
    return found, broken


def outcomes(xml: bytes) -> dict[str, str]:
    """Test → ``passed``, ``failed`` or ``skipped``; of a broken file nothing."""
    try:
        cases = ElementTree.fromstring(xml).iter("testcase")
    except ElementTree.ParseError:
        return {}
    found = {}
    for case in cases:
        kinds = {child.tag for child in case}
        failed = bool(kinds & {"failure", "error"})
        name = case.get("name", "")
        found[name] = "failed" if failed else "skipped" if "skipped" in kinds else "passed"
    return found


def counted(results: Mapping[str, str]) -> dict[str, Any]:
    """Count tests that passed, failed and were skipped; name those that failed."""
    kinds = list(results.values())
    counts = {kind: kinds.count(kind) for kind in ("passed", "failed", "skipped")}
    return {**counts, "failures": sorted(n for n, kind in results.items() if kind == "failed")}


def content_of(files: Mapping[str, bytes], date: str) -> dict[str, Any]:
    """The result file's content."""
    text = {name: data.decode(errors="replace") for name, data in files.items()}
    loaded, broken = parsed(files)
    devices = loaded.get("devices.json", {})
    gpus = devices.get("gpus") or [{"name": UNKNOWN}]
    tests = outcomes(files.get("tests.xml", b""))
    results = tests | outcomes(files.get("memory.xml", b""))
    checks = loaded.get("selftest.json", {}).get("checks", [])
    by_part = {
        part: counted({n: kind for n, kind in results.items() if re.search(pattern, n)})
        for part, pattern in STATUS.items()
    }
    rows = [line.split() for line in text.get("parts", "").splitlines()]
    return {
        "date": date,
        "machine": devices.get("cpu", {}).get("name", "unknown"),
        "gpu": gpus[0]["name"],
        "python": version_of_python(text.get("tests.log", "") + text.get("facts.log", "")),
        "versions": {"graphc": graphc.__version__, **versions_in(text.get("facts.log", ""))},
        "commit": text.get("commit", "").strip(),
        "broken_files": broken,
        "libraries": sorted(
            {check["found"] for check in checks if check["subject"] == "libraries"}
        ),
        "parts": {name: {"status": status, "seconds": int(took)} for name, status, took in rows},
        "selftest": {
            "passed": sum(check["passed"] for check in checks),
            "failures": [check for check in checks if not check["passed"]],
        },
        "tests": counted(results),
        "by_part": by_part,
        "cudnn_declines": gpus[0].get("cudnn_declines", {}),
        "steps": {
            name.removeprefix("steps-").removesuffix(".json"): {
                variant: shortened(figures) for variant, figures in each.items()
            }
            for name, each in loaded.items()
            if name.startswith("steps-")
        },
        "fit": {
            case: figures
            for name, each in loaded.items()
            if re.fullmatch(r"fit-\d+\.json", name)
            for case, figures in each.items()
        },
        "planned": {
            name.removeprefix("planned-").removesuffix(".json"): each
            for name, each in loaded.items()
            if name.startswith("planned-")
        },
        "link": loaded.get("link.json", {}),
        "peers": {
            name.removeprefix("peer-").removesuffix(".json"): each
            for name, each in loaded.items()
            if name.startswith("peer-")
        },
    }


def shortened(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a variant with the longest launches alone."""
    launches = sorted(figures.get("launches", ()), key=lambda launch: -launch[2])
    return {**figures, "launches": launches[:LAUNCHES]} if launches else dict(figures)


def versions_in(listed: str) -> dict[str, str]:
    """The packages of interest in what `pip list` printed, as ``name==version`` or columns."""
    found = {}
    for line in listed.splitlines():
        match = re.match(r"([\w.-]+)(?:==|\s+)([\w.+]+)\s*$", line)
        if match and match[1] in PACKAGES:
            found[match[1]] = match[2]
    return found


def version_of_python(log: str) -> str:
    """The version in a log of pytest or of day.py."""
    match = re.search(r"Python (3\.\d+\.\d+)", log)
    return match[1] if match else "unknown"


def problems(content: Mapping[str, Any]) -> list[str]:
    """Parts, files, checks, libraries, tests and variants that failed, in a sentence each."""
    found = [
        f"part {name}: exit status {part['status']}"
        for name, part in content["parts"].items()
        if part["status"] != "0"
    ]
    found += [
        f"selftest: {c['network']}, {c['subject']}: {c['found']}"
        for c in content["selftest"]["failures"]
    ]
    found += [f"file {name} is not complete" for name in content["broken_files"]]
    found += [f"library: {text}" for text in content["libraries"] if "cannot be used" in text]
    found += [f"test: {name}" for name in content["tests"]["failures"]]
    for part in ("steps", "planned"):
        for network, variants in content[part].items():
            found += [
                f"{part}: {network} {name}: {figures['problem']}"
                for name, figures in variants.items()
                if "problem" in figures
            ]
    for case, figures in content["fit"].items():
        found += [f"fit: {case}: {figures['problem']}"] if "problem" in figures else []
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archives", nargs="+", type=Path, help="results.tgz of run.sh")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--output", type=Path, help="default: benchmarks/results/gpu_day_GPU.json")
    options = parser.parse_args()
    content = content_of(files_of(options.archives), options.date)
    kind = re.search(r"[A-Z]+\d+", content["gpu"])
    name = f"gpu_day_{kind[0].lower() if kind else 'unknown'}.json"
    output = options.output or RESULTS / name
    write_json(output, content)
    tests, selftest = content["tests"], content["selftest"]
    print(f"{content['gpu']}: {tests['passed']} tests and {selftest['passed']} checks passed")
    found = problems(content)
    print("\n".join(found) or "nothing failed")
    print(output)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
