"""Many seeds: streamed into a job exactly once, whatever happens to the client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.cli import Ran, crawlctl, environment, eventually, running
from tests.support.servers import EtcdServer, RedisServer
from tests.support.tcpproxy import TcpProxy
from tests.support.waiting import until_true

COUNT = 20_000
HALF = COUNT // 2
SUBMIT = ("submit", "--seeds", "-", "--paused", "--id", "j", "--shards", "8")
LIMIT_MB = 200


def seeds(tmp_path: Path, count: int = COUNT) -> Path:
    file = tmp_path / f"{count}.txt"
    with file.open("w") as lines:
        lines.writelines(
            f"https://www.site-{number % 997}.example/news/{number:07d}.html\n"
            for number in range(count)
        )
    return file


MEASURE = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(process.pid, 0)
with open(sys.argv[1], "w") as peak:
    peak.write(str(usage.ru_maxrss))
os._exit(os.waitstatus_to_exitcode(status))
"""
"""Starts the client from a small process: what is forked counts with the memory of who forks it."""


def submit(file: Path, options: list[str]) -> tuple[Ran, float]:
    """Stream a file into a job; return how the client ended, and its peak of memory in MB."""
    peak = file.with_suffix(".peak")
    with file.open("rb") as stream:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(peak), sys.executable, "-m", "crawlctl", *SUBMIT,
             *options],
            stdin=stream, capture_output=True, text=True, env=environment(), check=False,
        )  # fmt: skip
    unit = 2**20 if sys.platform == "darwin" else 1024
    return Ran(done.returncode, done.stdout, done.stderr), int(peak.read_text()) / unit


def show(options: list[str], job: str = "j") -> dict[str, Any]:
    shown: dict[str, Any] = crawlctl("job", "show", job, "--json", *options).json
    return shown


def all_seeds_are_in(options: list[str]) -> bool:
    shown = show(options)
    counters = shown["counters"]
    assert counters["discovered"] <= COUNT
    return bool((COUNT, COUNT) == (counters["discovered"], counters["queued"]))


def test_seeds_stream_into_a_paused_job_and_the_same_again_adds_none(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    options = ["--etcd", etcd_server.endpoint, "--redis", redis_server.url]
    options += ["--cluster", cluster_name]
    file = seeds(tmp_path)
    with running("start-master", *options):
        for _ in range(2):
            ran, peak_mb = submit(file, options)
            assert (0, "j\n") == (ran.code, ran.out), ran.err
            assert peak_mb < LIMIT_MB
            eventually(lambda: all_seeds_are_in(options), within_s=90, what="all seeds")
        shown = show(options)
        assert ("paused", COUNT) == (shown["state"], shown["spec"]["seeds"])
        other, _ = submit(seeds(tmp_path, COUNT - 1), options)
        assert (4, True) == (other.code, "seeds is 20000 there" in other.err)
        assert all_seeds_are_in(options)


async def test_a_client_that_is_killed_halfway_is_simply_run_again(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    """The job does not start with half of its seeds, and says what it waits for."""
    places = ["--etcd", etcd_server.endpoint, "--cluster", cluster_name]
    options = [*places, "--redis", redis_server.url]
    file = seeds(tmp_path)
    async with TcpProxy(f"127.0.0.1:{redis_server.port}") as proxy:
        proxy.hold_from = f"{HALF:07d}.html".encode()
        with file.open("rb") as stream:
            client = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "crawlctl", *SUBMIT),
                *(*places, "--redis", f"redis://{proxy.endpoint}/0"),
                stdin=stream, stdout=subprocess.DEVNULL, env=environment(),
            )  # fmt: skip
        try:
            await until_true(lambda: proxy.held_bytes, within_s=60)
        finally:
            client.kill()
            await client.wait()
    await asyncio.to_thread(_run_again, file, options)


def _run_again(file: Path, options: list[str]) -> None:
    with running("start-master", *options):
        resumed = crawlctl("job", "resume", "j", *options)
        assert (0, True) == (resumed.code, "its seeds are not complete" in resumed.err)
        # Once the master has offered the seed of a later job it could have offered these as well.
        later = crawlctl("submit", "https://x.example/", "--paused", "--id", "k", *options)
        assert 0 == later.code, later.err
        eventually(lambda: 1 == show(options, "k")["counters"]["discovered"], within_s=60)
        before = show(options)
        assert ("pending", None) == (before["state"], before["spec"]["seeds"])
        assert 0 == before["counters"]["discovered"]
        assert "not complete" in before["reason"]
        ran, _ = submit(file, options)
        assert 0 == ran.code, ran.err
        eventually(lambda: all_seeds_are_in(options), within_s=90, what="all seeds")
        assert COUNT == show(options)["spec"]["seeds"]
