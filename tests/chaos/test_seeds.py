"""Whole crawls under faults that a seed decides: nothing lost, nothing twice, nobody harmed.

The seeds run two side by side in the background; each test waits for the verdict on its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import PROGRAM

SEEDS = (("all", range(1, 11)), ("flush", range(1, 2)))
LIMIT_S = 600.0

Verdicts = Callable[[str, int], dict[str, Any]]


@pytest.fixture(scope="session")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Verdicts]:
    """Start the seeds of the tests selected; return how to wait for one."""
    folder = tmp_path_factory.mktemp("chaos")
    chosen = [
        (item.callspec.params["profile"], item.callspec.params["seed"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and "verdicts" in item.fixturenames
    ]
    shares = [chosen[0::2], chosen[1::2]]
    running = [_started(share, folder, number) for number, share in enumerate(shares) if share]

    def verdict(profile: str, seed: int) -> dict[str, Any]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            for path in folder.glob("results-*.jsonl"):
                for line in path.read_text().splitlines():
                    result: dict[str, Any] = json.loads(line)
                    if (result["profile"], result["seed"]) == (profile, seed):
                        return result
            assert time.monotonic() < deadline, f"no verdict on {profile} {seed} in {LIMIT_S} s"
            time.sleep(0.2)

    yield verdict
    for process in running:
        process.terminate()
        process.wait()


def _started(share: list[tuple[str, int]], folder: Path, number: int) -> subprocess.Popen[bytes]:
    """Run a share of the seeds one after the other."""
    commands = [
        [
            "--seeds", str(seed), "--profile", profile, "--keep", str(folder),
            "--resume", str(folder / f"results-{number}.jsonl"),
        ]
        for profile, seed in share
    ]  # fmt: skip
    code = (
        "import json, subprocess, sys\n"
        "for more in json.loads(sys.argv[2]):\n"
        "    subprocess.run([sys.executable, sys.argv[1], *more], check=False)\n"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code, str(PROGRAM), json.dumps(commands)],
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    ("profile", "seed"), [(profile, seed) for profile, seeds in SEEDS for seed in seeds]
)
def test_the_promises_hold_under_the_faults_of(profile: str, seed: int, verdicts: Verdicts) -> None:
    result = verdicts(profile, seed)
    assert [] == result["violations"], result["schedule"]
