"""Whole crawls under faults: nothing lost, nothing twice, nobody harmed; the judge would see it.

All runs go two side by side in the background; each test waits for the verdict on its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import PROGRAM
from tests.chaos.directed import SCENARIOS
from tests.chaos.mutants import MUTANTS

SEEDS = [f"all {seed}" for seed in range(1, 11)] + ["flush 1"]
QUICK = ("late-calls", "late-master", "late-offer", "lost-lock-replies")
"""Directed schedules of every test run; ``scripts/test all`` runs the others as well."""
QUICK_MUTANTS = ("fence",)
LIMIT_S = 900.0

Verdicts = Callable[[str], dict[str, Any]]


def _slow(names: list[str], kind: str, quick: tuple[str, ...]) -> list[Any]:
    return [
        pytest.param(f"{kind} {name}", marks=[] if name in quick else [pytest.mark.slow])
        for name in names
    ]


def _arguments(run: str) -> list[str]:
    kind, _, name = run.partition(" ")
    if kind in ("directed", "mutant"):
        return ["--directed" if kind == "directed" else "--mutants", name]
    return ["--profile", kind, "--seeds", name]


@pytest.fixture(scope="session")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Verdicts]:
    """Start the runs of the tests selected; return how to wait for the verdict on one."""
    folder = tmp_path_factory.mktemp("chaos")
    chosen = [
        str(item.callspec.params["run"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "verdicts" in item.fixturenames
    ]
    shares = [chosen[0::2], chosen[1::2]]
    running = [_started(share, folder, number) for number, share in enumerate(shares) if share]

    def verdict(run: str) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            is_over = all(process.poll() is not None for process in running)
            for path in folder.glob("results-*.jsonl"):
                for line in path.read_text().splitlines():
                    result: dict[str, Any] = json.loads(line)
                    if result["run"] == run:
                        return result
            said = "\n".join(path.read_text()[-3000:] for path in folder.glob("said-*"))
            assert not is_over, f"no verdict on {run}\n{said}"
            assert time.monotonic() < deadline, f"no verdict on {run} within {LIMIT_S} s\n{said}"
            time.sleep(0.2)

    yield verdict
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # what a laboratory has started dies with it
        process.wait()


def _started(share: list[str], folder: Path, number: int) -> subprocess.Popen[bytes]:
    """Run a share of the runs one after the other."""
    results = str(folder / f"results-{number}.jsonl")
    commands = [
        [*_arguments(run), "--keep", str(folder / run.replace(" ", "-")), "--resume", results]
        for run in share
    ]
    code = (
        "import json, subprocess, sys\n"
        "for more in json.loads(sys.argv[2]):\n"
        "    subprocess.run([sys.executable, sys.argv[1], *more], check=False)\n"
    )
    with (folder / f"said-{number}").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-c", code, str(PROGRAM), json.dumps(commands)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


@pytest.mark.parametrize("run", SEEDS)
def test_the_promises_hold_under_the_faults_of(run: str, verdicts: Verdicts) -> None:
    result = verdicts(run)
    assert [] == result["violations"], result["schedule"]


@pytest.mark.parametrize("run", _slow(list(SCENARIOS), "directed", QUICK))
def test_the_promises_hold_where_a_schedule_aims_at_a_guard(run: str, verdicts: Verdicts) -> None:
    assert [] == verdicts(run)["violations"]


@pytest.mark.parametrize("run", _slow(list(MUTANTS), "mutant", QUICK_MUTANTS))
def test_the_judge_notices_when_a_guard_is_missing(run: str, verdicts: Verdicts) -> None:
    result = verdicts(run)
    assert result["good"], result["violations"]
