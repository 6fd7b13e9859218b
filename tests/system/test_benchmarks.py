"""The benchmark scripts run, end what they started, and count what they say they count."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import environment, processes_of

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"


def run_script(name: str, *arguments: str, folder: Path, needs_nginx: bool = True) -> str:
    if not sys.platform.startswith("linux"):
        pytest.skip("NOT LINUX: only there is all of 127/8 this machine")
    if needs_nginx and not (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")):
        pytest.skip("NO NGINX: install nginx to run this test (apt-get install nginx)")
    done = subprocess.run(
        [sys.executable, str(BENCH / name), *arguments],
        env=environment(TMPDIR=str(folder)),
        cwd=BENCH.parents[1],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert [] == processes_of(folder)
    assert [] == list(folder.iterdir())
    return done.stdout


def test_a_small_race_tells_what_a_page_costs_each_part(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    figures = tmp_path / "race.jsonl"
    arguments = ["--site", "small", "--program", "ours-1", "--rounds", "1", "--pages", "60"]
    said = run_script("race", *arguments, "--json", str(figures), folder=inside)
    setting, run = map(json.loads, figures.read_text().splitlines())
    assert 60 == run["pages"]
    assert run["worker_cpu_ms_per_page"] > 0
    assert {"etcd", "redis"} == set(run["servers"])
    assert 60 == setting["settings"]["pages"]
    assert "small: medians" in said


def test_a_short_soak_draws_the_memory_of_the_worker(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    picture = tmp_path / "soak.svg"
    said = run_script("soak", "--minutes", "0.05", "--svg", str(picture), folder=inside)
    facts = json.loads(said.splitlines()[-1])
    assert facts["pages"] > 0
    assert facts["rss_mb_at_the_end"] > 10
    assert "<polyline" in picture.read_text()


def test_good_hosts_beside_hostile_ones_are_crawled_to_the_end(tmp_path: Path) -> None:
    """How fast is for a quiet machine to say; that all is accounted for holds on any."""
    arguments = ["--hosts", "3", "--pages", "10", "--links", "2000", "--least-share", "0"]
    *runs, verdict = map(
        json.loads, run_script("hostile", *arguments, folder=tmp_path).splitlines()
    )
    assert [] == verdict["faults"]
    assert ["good", "both", "again"] == [one["run"] for one in runs]
    assert {"protocol_error", "too_large", "read_timeout"} <= runs[1]["errors"].keys()


def test_hosts_with_delays_of_their_own_are_asked_as_promised_over_a_kill(tmp_path: Path) -> None:
    arguments = ["--hosts", "24", "--pages", "5", "--workers", "2", "--kill-after", "1"]
    told = json.loads(run_script("polite", *arguments, folder=tmp_path, needs_nginx=False))
    assert told["killed"]
    assert 24 * (5 + 1) < told["requests"]


@pytest.mark.parametrize(
    "name", ["bare_loop.py", "scrapy_spider.py", "crawlee_crawler.py", "requirements.txt"]
)
def test_the_programs_to_compare_with_are_valid(name: str) -> None:
    text = (BENCH / "peers" / name).read_text()
    if name.endswith(".py"):
        compile(text, name, "exec")
    else:
        pinned = [line for line in text.splitlines() if not line.startswith("#")]
        assert [] == [line for line in pinned if "==" not in line]
