"""`make mutants`: small faults are put into the core, one at a time; do the tests notice?

Each fault is written into a scratch copy of the checkout. A process forked from this one, which has
the libraries loaded but no graphc, runs the tests there that call the function with the fault. The
sample is the faults with the least hashes, so a change elsewhere leaves it as it is.

`survivors.toml` has the faults that no test need notice, with the reason. Equivalent ones change
nothing that a test could see: they count for nothing, and the sample takes the next instead. The
exit is 1 if a group has less than 95 % noticed, if a survivor has no reason, or if what has one is
noticed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import sys
import tempfile
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mutants.faults import Fault, faults_in
from mutants.groups import GROUPS
from mutants.recording import choice_for
from mutants.scratch import Scratch

ROOT = Path(__file__).parents[2]
SURVIVORS = Path(__file__).with_name("survivors.toml")
LEAST_NOTICED = 0.95
LIBRARIES = (
    "hypothesis.extra.numpy",
    "ml_dtypes",
    "networkx",
    "numba",
    "rich.console",
    "safetensors.numpy",
    "scipy.optimize",
    "scipy.special",
)
"""What graphc and its tests import: loaded once, for all processes that are forked."""


@dataclass(frozen=True)
class Reason:
    """Why a fault need not be noticed, and whether it is one at all."""

    why: str
    equivalent: bool = False


def reasons() -> dict[tuple[str, str, str], Reason]:
    """The committed reasons, by file, text before and text after."""
    found = {}
    for entry in tomllib.loads(SURVIVORS.read_text()).get("fault", []):
        key = (entry["path"], entry["before"], entry["after"])
        found[key] = Reason(entry["why"], entry.get("equivalent", False))
    return found


def key(fault: Fault) -> tuple[str, str, str]:
    return (fault.path, fault.before, fault.after)


def paths_of(name: str) -> list[str]:
    """The files of a group."""
    found = (path for pattern in GROUPS[name].modules for path in ROOT.glob(pattern))
    return sorted(str(path.relative_to(ROOT)) for path in found if path.name != "__init__.py")


def sample(
    name: str, count: int, seed: int, known: dict[tuple[str, str, str], Reason]
) -> list[Fault]:
    """So many faults of a group, and the equivalent ones that came before them."""
    faults = {key(fault): fault for path in paths_of(name) for fault in faults_in(ROOT, path)}

    def place(fault: Fault) -> str:
        text = "\0".join((str(seed), *key(fault), fault.function))
        return hashlib.sha256(text.encode()).hexdigest()

    chosen = []
    for fault in sorted(faults.values(), key=place):
        reason = known.get(key(fault))
        count -= reason is None or not reason.equivalent
        if count < 0:
            break
        chosen.append(fault)
    return chosen


class Run:
    """One group: its faults, put in one after the other, and what became of them."""

    def __init__(self, name: str, scratch: Scratch, arguments: argparse.Namespace) -> None:
        self.name, self.group, self.scratch = name, GROUPS[name], scratch
        self.known = reasons()
        self.arguments = arguments
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self) -> None:
        """Put in the faults; what is to be said of each is printed at once."""
        print(f"{self.name}: recording what the tests call", flush=True)
        recorded = self.scratch.record(self.group, paths_of(self.name))
        tests = [test for test in recorded if not test["fails"]]
        self.wrong += [f"fails without a fault: {t['id']}" for t in recorded if t["fails"]]
        chosen = sample(self.name, self.arguments.count, self.arguments.seed, self.known)
        for number, fault in enumerate(chosen, 1):
            if self.arguments.only not in str(fault):
                continue
            if key(fault) in self.known and self.known[key(fault)].equivalent:
                self.counts["equivalent"] += 1
                continue
            start = time.perf_counter()
            picked = choice_for(fault.function, tests, self.arguments.seconds / 2)
            found = self.scratch.notices(fault, picked, self.group.compiled, self.arguments.seconds)
            seconds = time.perf_counter() - start
            print(f"{number:3}/{len(chosen)} {found:9} {seconds:5.1f} s  {fault}", flush=True)
            self.judge(fault, found)

    def judge(self, fault: Fault, found: str) -> None:
        """Count a fault, and note what must not be."""
        reason = self.known.get(key(fault))
        if reason is not None and found != "noticed":
            self.counts["explained"] += 1  # also one that ran out of time on a busy machine
        elif found == "unseen":
            self.counts["survivors"] += 1
            self.wrong.append(f"unseen, without a reason: {fault}")
        else:
            self.counts[found] += 1
            if reason is not None:
                self.wrong.append(f"has a reason, and is noticed: {fault}")

    @property
    def part(self) -> float:
        """The part of the faults that was noticed."""
        noticed = self.counts["noticed"] + self.counts["timed out"]
        total = self.counts.total() - self.counts["equivalent"]
        return noticed / total if total else 1.0

    def row(self) -> str:
        names = ("noticed", "timed out", "explained", "survivors", "equivalent")
        cells = "".join(f"{self.counts[name]:>12}" for name in names)
        total = self.counts.total() - self.counts["equivalent"]
        return f"{self.name:12}{total:>9}{cells}{100 * self.part:>8.0f} %"


HEAD = f"{'group':12}{'mutants':>9}" + "".join(
    f"{name:>12}" for name in ("noticed", "timed out", "explained", "unexplained", "equivalent")
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=(__doc__ or "").split(":")[0])
    parser.add_argument("groups", nargs="*", help=f"of {', '.join(GROUPS)}; all if none is given")
    parser.add_argument("--count", type=int, default=25, help="faults a group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="the most for one fault")
    parser.add_argument("--only", default="", help="faults whose line in the list has this text")
    arguments = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for library in LIBRARIES:
        importlib.import_module(library)
    runs = []
    for name in arguments.groups or GROUPS:
        if (library := GROUPS[name].library) is not None:
            if importlib.util.find_spec(library) is None:
                print(f"{name}: left out, since {library} is not installed", flush=True)
                continue
            importlib.import_module(library)
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            runs.append(Run(name, Scratch(ROOT, Path(folder)), arguments))
            runs[-1].run()
    print("", HEAD, *(run.row() for run in runs), sep="\n")
    wrong = [text for run in runs for text in run.wrong]
    print("", *wrong, sep="\n")
    return int(bool(wrong) or any(run.part < LEAST_NOTICED for run in runs))


if __name__ == "__main__":
    sys.exit(main())
