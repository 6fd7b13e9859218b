"""What a run costs: CPU seconds of every process it consists of, and writes to its etcd.

Processes are looked at ten times a second while they run, so that the costs of any part of the run
can be told: between the first and the last page, without start and end.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.request
from collections import defaultdict
from typing import Any, Self

import psutil

_EVERY_S = 0.1
_SELDOM_S = 0.5
_NODES = {"start-worker": "worker", "worker.reader": "worker", "start-master": "master"}
_SERVERS = {"etcd": "etcd", "redis-server": "redis", "valkey-server": "redis", "nginx": "site"}

Sample = dict[str, float]


def role_of(command: list[str]) -> str:
    """Return what a process is, by its command line."""
    program = command[0].rpartition("/")[2].partition(":")[0] if command else ""
    if program in _SERVERS:
        return _SERVERS[program]
    return next((role for word, role in _NODES.items() if word in command), "program")


class Usage:
    """Watches process trees, in a thread, until stopped. Times are of the Unix epoch."""

    def __init__(self, *pids: int) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._cpu_s: dict[psutil.Process, float] = {}
        self._roles: dict[psutil.Process, str] = {}
        self._cpu: list[tuple[float, Sample]] = []
        self._revisions: list[tuple[float, Sample]] = []
        self._etcd: str | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.worker_rss_mb: list[tuple[float, float]] = []
        """Time, and the resident set of all workers."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_between(self, start: float, end: float) -> Sample:
        """Return CPU seconds by role."""
        return _between(self._cpu, start, end)

    def etcd_writes_between(self, start: float, end: float) -> float:
        """Return how many writes etcd took; 0 where there is none."""
        return _between(self._revisions, start, end).get("revision", 0.0)

    def _run(self) -> None:
        seldom_at = 0.0
        while not self._stop.wait(_EVERY_S):
            now = time.time()
            if now >= seldom_at:
                seldom_at = now + _SELDOM_S
                self._find()
                if self._etcd is not None:
                    with contextlib.suppress(OSError):
                        self._revisions.append((time.time(), {"revision": _revision(self._etcd)}))
            self._look(now)

    def _find(self) -> None:
        for root in self._roots:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        command = process.cmdline()
                        self._roles[process] = role_of(command)
                        if self._roles[process] == "etcd":
                            self._etcd = _client_url(command)

    def _look(self, now: float) -> None:
        sample: Sample = defaultdict(float)
        rss_mb = 0.0
        for process, role in self._roles.items():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                times = process.cpu_times()
                self._cpu_s[process] = times.user + times.system
                if role == "worker":
                    rss_mb += process.memory_info().rss / 2**20
            sample[role] += self._cpu_s.get(process, 0.0)
        self._cpu.append((now, dict(sample)))
        if rss_mb:
            self.worker_rss_mb.append((now, rss_mb))


def _between(samples: list[tuple[float, Sample]], start: float, end: float) -> Sample:
    if not samples:
        return {}
    before, after = _at(samples, start), _at(samples, end)
    return {name: after[name] - before.get(name, 0.0) for name in after}


def _at(samples: list[tuple[float, Sample]], when: float) -> Sample:
    """Return the values at a time, in between of two samples on the line from one to the other."""
    earlier = next((one for one in reversed(samples) if one[0] <= when), samples[0])
    later = next((one for one in samples if one[0] > when), samples[-1])
    share = min(1.0, max(0.0, (when - earlier[0]) / max(later[0] - earlier[0], 1e-9)))
    return {
        name: (known := earlier[1].get(name, 0.0)) + share * (value - known)
        for name, value in later[1].items()
    }


def _client_url(command: list[str]) -> str | None:
    prefix = "--listen-client-urls="
    return next((word.removeprefix(prefix) for word in command if word.startswith(prefix)), None)


def _revision(endpoint: str) -> float:
    """Return the store's revision: it grows by one with every write."""
    request = urllib.request.Request(f"{endpoint}/v3/kv/range", data=b'{"key":"AA=="}')
    with urllib.request.urlopen(request, timeout=1) as answer:
        header: dict[str, Any] = json.load(answer)["header"]
    return float(header["revision"])
