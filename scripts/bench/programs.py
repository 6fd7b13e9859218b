"""The programs of the race: each is run as a process on a served site, and what it cost is told."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from sites import Site
from usage import Sample, Usage

PEERS = Path(__file__).resolve().parent / "peers"
OURS = ("ours-1", "ours-2", "ours-1-url", "ours-2-url")
NAMES = (*OURS, "bare", "scrapy", "scrapy-redis", "crawlee")
OWN_ROLES = ("worker", "master", "redis", "etcd", "program")
FULL_SPEED = ("--delay", "0", "--per-host", "32")
_CRAWLCTL = (sys.executable, "-m", "crawlctl")
_STOP_S = 60.0


class Run(NamedTuple):
    """One run of one program."""

    program: str
    pages: int
    seconds: float
    cpu: Sample
    """CPU seconds from the first to the last page, by role; ``site`` is the web server's."""
    etcd_writes_per_s: float

    @property
    def pages_per_s(self) -> float:
        return self.pages / self.seconds

    @property
    def pages_per_cpu_s(self) -> float:
        """Of the processes that fetch and parse: what is compared on a machine with other work."""
        return self.pages / max(self.cpu["worker" if "worker" in self.cpu else "program"], 1e-9)

    def line(self) -> dict[str, Any]:
        cpu = {f"{role}_cpu_ms_per_page": cpu * 1000 / self.pages for role, cpu in self.cpu.items()}
        facts = {"pages_per_s": self.pages_per_s, "pages_per_cpu_s": self.pages_per_cpu_s, **cpu}
        facts["etcd_writes_per_s"] = self.etcd_writes_per_s
        shown = {name: round(value, 3) for name, value in facts.items()}
        return {"program": self.program, "pages": self.pages, **shown}


def run(
    name: str, site: Site, pages: int, folder: Path, *, peers: Path | None, pin: bool = False
) -> Run:
    """Run one of :data:`NAMES` for so many pages, in a folder of its own.

    Args:
        name: which.
        site: what is crawled.
        pages: how many.
        folder: of this run alone.
        peers: environment of the programs that are not ours.
        pin: keep each of our workers, with the process that reads its heavy pages, on one core.
    """
    if name in OURS:
        return _ours(name, site, pages, folder, pin=pin)
    if peers is None:
        sys.exit(f"{name} needs --peers DIR: an environment to install it in, or that has it")
    python = str(peers / "bin" / "python")
    count, out = str(pages), str(folder / "out.jsonl")
    match name:
        case "bare":
            return _peer(name, [python, str(PEERS / "bare_loop.py"), count, *site.starts], site)
        case "scrapy":
            script = str(PEERS / "scrapy_spider.py")
            return _peer(name, [python, script, count, out, *site.starts], site, folder)
        case "scrapy-redis":
            script = str(PEERS / "scrapy_spider.py")
            with _redis(folder) as (url, pid):
                command = [python, script, count, out, "--redis", url, *site.starts]
                return _peer(name, command, site, folder, pid)
        case "crawlee":
            script = str(PEERS / "crawlee_crawler.py")
            return _peer(name, [python, script, count, out, *site.starts], site, folder)
    raise ValueError(name)


def make_peers(folder: Path) -> None:
    """Make the environment of the other programs where there is none."""
    if not (folder / "bin" / "python").exists():
        print(f"installing the other programs into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True)
        pip = [folder / "bin" / "python", "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "-r", PEERS / "requirements.txt"], check=True)


def versions(python: str | Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of what is installed for a Python, itself included."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "found = {'python': platform.python_version()}\n"
        "for name in sys.argv[1:]:\n"
        "    try: found[name] = m.version(name)\n"
        "    except m.PackageNotFoundError: pass\n"
        "print(json.dumps(found))"
    )
    command = [str(python), "-c", code, *packages]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def crawling(
    site: Site, folder: Path, *, workers: int, options: Sequence[str]
) -> Iterator[tuple[subprocess.Popen[bytes], Usage]]:
    """Run ``crawlctl crawl`` on a site; at the end of the context it is asked to end."""
    command = [*_CRAWLCTL, "crawl", *site.starts, "-o", str(folder), "--workers", str(workers)]
    process = subprocess.Popen(
        [*command, "--allow-private", "-q", *options],
        env={key: text for key, text in os.environ.items() if not key.startswith("CRAWLCTL_")},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        with Usage(process.pid, site.pid) as usage:
            yield process, usage
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()  # its children end with it
            process.wait()


def _ours(name: str, site: Site, pages: int, folder: Path, *, pin: bool) -> Run:
    _, workers, *how = name.split("-")
    spread = ("--shard-by", "url") if how else ()
    options = (*FULL_SPEED, *spread, "--max-pages", str(pages))
    with crawling(site, folder, workers=int(workers), options=options) as (process, usage):
        if pin:
            _pin(process.pid, int(workers))
        if process.wait():
            sys.exit(f"crawlctl crawl ended with exit code {process.returncode}")
        by_worker = fetch_times(folder)
    # Starting servers and interpreters is no crawling, and the second worker comes later.
    start = max(map(min, by_worker.values()))
    times = [time for some in by_worker.values() for time in some if time >= start]
    return _measured(name, len(times), start, max(times), usage)


def _pin(crawl: int, count: int) -> None:
    """Keep each worker of a crawl on a core of its own, with what it starts later."""
    deadline = time.monotonic() + _STOP_S
    while True:
        found = list(filter(_is_worker, psutil.Process(crawl).children(recursive=True)))
        if len(found) == count:
            break
        if time.monotonic() > deadline:
            sys.exit(f"{len(found)} of {count} workers have started")
        time.sleep(0.01)
    for core, process in enumerate(sorted(found, key=lambda one: one.pid)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core % (os.cpu_count() or 1)})


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "start-worker" in process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return False


def fetch_times(folder: Path) -> dict[str, list[float]]:
    """Return by worker when it fetched each page of a crawl's results (Unix epoch)."""
    times: dict[str, list[float]] = {}
    with (folder / "results.jsonl").open("rb") as lines:
        for record in map(json.loads, lines):
            if record["outcome"] == "fetched":
                at = datetime.fromisoformat(record["fetched_at"]).timestamp()
                times.setdefault(record["worker"], []).append(at)
    return times


def _peer(
    name: str, command: list[str], site: Site, folder: Path | None = None, *others: int
) -> Run:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder, text=True)
    try:
        with Usage(process.pid, site.pid, *others) as usage:
            said, _ = process.communicate()
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        sys.exit(f"{name} ended with exit code {process.returncode}")
    facts = json.loads(said.strip().splitlines()[-1])
    return _measured(name, facts["pages"], facts["started"], facts["ended"], usage)


def _measured(name: str, pages: int, start: float, end: float, usage: Usage) -> Run:
    seconds = max(end - start, 1e-3)
    writes = usage.etcd_writes_between(start, end) / seconds
    return Run(name, pages, seconds, usage.cpu_between(start, end), writes)


@contextlib.contextmanager
def _redis(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a data server that keeps nothing on disk, as suits a queue one can do without."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        sys.exit("redis-server was not found; install it, or leave out scrapy-redis")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    options = ["--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no"]
    log = str(folder / "redis.log")
    process = subprocess.Popen([program, *options, "--dir", str(folder), "--logfile", log])
    try:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", int(port)), 1).close()
                break
            time.sleep(0.02)
        yield f"redis://127.0.0.1:{port}/0", process.pid
    finally:
        process.terminate()
        process.wait(timeout=10)
