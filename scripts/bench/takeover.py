#!/usr/bin/env python3
"""How fast a cluster recovers, and what it fetches again, when workers and masters are killed.

usage: takeover.py [--events N] [--minutes N] [--lease-ttl S] [--workers N] [--hosts N] [--shards N]

Starts private servers, two masters and the workers, and a crawl of a site of its own on addresses
of 127/8 (Linux). Then, N times each:

- ``worker killed``: kill -9 of a worker. *owned*: until each of its tasks has another owner;
  *crawling*: until a page was fetched in each of them that had URLs waiting.
- ``worker drained``: SIGTERM to a worker. *each task*: from the moment its lock was let go until
  another worker has it; *left*: until the process has ended. *refetched* counts URLs the site was
  asked for twice.
- ``master killed``: kill -9 of the active master. *acting*: until a master of a newer term has
  raised the fence of every shard, its first deed.
- ``a kill a minute`` (``--minutes`` times): kill -9 of a worker, then a minute of crawling.
  *refetched_percent*: of all requests in it, those for a URL the site had been asked for before.

A host with a request on the wire when its worker was killed rests until that is surely over (5 s
and --timeout after its claim); *crawling* therefore needs several hosts a shard.

Each process killed or drained is started again before the next event. Prints one JSON line an event
and a table of min, median and max at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))

from aiohttp import web

from common.coord import Coord, connect
from common.coord.member import EtcdOptions
from common.frontier import FrontierClient, JobFrontier, RedisOptions
from common.frontier.keys import TaskKeys
from common.model.ids import JobId, Task
from common.runtime import upstate
from tests.support.arguments import Parser, real, whole

ROOT = Path(__file__).parents[2]
CLUSTER = "takeover"
JOB = "job"
POLL_S = 0.01


class Site:
    """Pages without end on several addresses; counts what it is asked for."""

    def __init__(self, hosts: int) -> None:
        self.addresses = [f"127.0.7.{number + 1}" for number in range(hosts)]
        self.asked: Counter[tuple[str, str]] = Counter()
        self.port = 0

    async def start(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/robots.txt", self._robots)
        app.router.add_get("/{number:[0-9]+}", self._page)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        for address in self.addresses:
            site = web.TCPSite(runner, address, self.port)
            await site.start()
            assert site._server is not None  # noqa: SLF001 - the only way to the chosen port
            self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]  # noqa: SLF001
        return runner

    async def _robots(self, _: web.Request) -> web.Response:
        return web.Response(status=404)

    async def _page(self, request: web.Request) -> web.Response:
        number = int(request.match_info["number"])
        self.asked[request.host, request.path] += 1
        links = "".join(f"<a href='/{number * 8 + n}'>x</a>" for n in range(1, 9))
        return web.Response(text=f"<html>{links}</html>", content_type="text/html")


class Cluster:
    """The processes under test."""

    def __init__(self, home: Path, arguments: argparse.Namespace) -> None:
        self.home = home
        self.ttl_s = arguments.lease_ttl
        self.environment = {
            **{key: text for key, text in os.environ.items() if not key.startswith("CRAWLCTL_")},
            "HOME": str(home),
            "XDG_STATE_HOME": str(home / "state"),
            "PYTHONPATH": str(ROOT),
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.started: Counter[str] = Counter()
        self.endpoints: list[str] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "crawlctl", *arguments]

    def call(self, *arguments: str) -> str:
        done = subprocess.run(
            self.command(*arguments), env=self.environment, check=False, capture_output=True
        )
        if done.returncode:
            raise SystemExit(f"{arguments[0]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def start(self, role: str) -> str:
        """Start a node and return its id."""
        self.started[role] += 1
        node = f"{role}-{self.started[role]}"
        command = self.command(
            *(f"start-{role}", "--id", node, "--lease-ttl", f"{self.ttl_s:g}", *self.endpoints)
        )
        with (self.home / f"{node}.log").open("wb") as log:
            self.processes[node] = subprocess.Popen(command, env=self.environment, stderr=log)
        return node

    def kill(self, node: str) -> None:
        process = self.processes.pop(node)
        process.kill()
        process.wait()

    def stop_all(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()


async def until(ask: Callable[[], Awaitable[object]], *, within_s: float = 120) -> float:
    """Wait until something is so; return how long it took."""
    began_s = time.monotonic()
    while not await ask():
        if time.monotonic() - began_s > within_s:
            raise SystemExit(f"did not happen within {within_s:g} s")
        await asyncio.sleep(POLL_S)
    return time.monotonic() - began_s


class Bench:
    """Does the events and takes the times."""

    def __init__(
        self,
        cluster: Cluster,
        site: Site,
        coord: Coord,
        client: FrontierClient,
        frontier: JobFrontier,
        *,
        workers: int,
        shards: int,
    ) -> None:
        self.cluster, self.site, self.coord, self.frontier = cluster, site, coord, frontier
        self.client = client
        self.workers, self.shards = workers, shards
        self.figures: dict[str, list[float]] = defaultdict(list)

    async def owners(self) -> dict[int, str]:
        locks = await self.coord.etcd.get_prefix(self.coord.keys.lock(f"tasks/{JOB}/"))
        return {
            int(key.rpartition("/")[2]): json.loads(kv.value)["owner"]
            for key, kv in locks.items.items()
        }

    async def is_settled(self) -> bool:
        owners = await self.owners()
        shares = Counter(owners.values())
        return (
            len(owners) == self.shards
            and await self.is_complete()
            and len(shares) == self.workers
            and max(shares.values()) <= 2 * min(shares.values()) + 1
        )

    async def is_complete(self) -> bool:
        live = await self.coord.members.live()
        here = {info.id for info in live if info.state in ("ready", "busy", "active", "standby")}
        return self.cluster.processes.keys() <= here

    async def settle(self) -> None:
        while self.alive("worker") < self.workers:
            self.cluster.start("worker")
        while self.alive("master") < 2:
            self.cluster.start("master")
        await until(self.is_settled)
        await asyncio.sleep(1.0)

    def alive(self, role: str) -> int:
        return sum(node.startswith(role) for node in self.cluster.processes)

    async def done(self) -> dict[int, int]:
        return {one.shard: one.counters["fetched"] for one in await self.frontier.stats()}

    async def worker_killed(self) -> dict[str, float]:
        owners = await self.owners()
        victim = max(Counter(owners.values()).items(), key=lambda one: one[1])[0]
        tasks = {shard for shard, owner in owners.items() if owner == victim}
        self.cluster.kill(victim)
        began_s, before = time.monotonic(), await self.done()
        waiting = {
            one.shard for one in await self.frontier.stats() if one.counters["queued"]
        } & tasks

        async def are_owned() -> bool:
            now = await self.owners()
            return all(now.get(shard, victim) != victim for shard in tasks)

        async def are_crawling() -> bool:
            now = await self.done()
            return all(now[shard] > before[shard] for shard in waiting)

        await until(are_owned)
        owned_s = time.monotonic() - began_s
        before = {**before, **{s: n for s, n in (await self.done()).items() if s not in waiting}}
        await until(are_crawling)
        return {"owned_s": owned_s, "crawling_s": time.monotonic() - began_s, "tasks": len(tasks)}

    async def worker_drained(self) -> dict[str, float]:
        owners = await self.owners()
        victim = max(Counter(owners.values()).items(), key=lambda one: one[1])[0]
        tasks = {shard for shard, owner in owners.items() if owner == victim}
        twice = sum(count - 1 for count in self.site.asked.values())
        process = self.cluster.processes.pop(victim)
        process.send_signal(signal.SIGTERM)
        began_s = time.monotonic()
        freed: dict[int, float] = {}
        gaps: dict[int, float] = {}
        left_s = 0.0
        while len(gaps) < len(tasks) or not left_s:
            now, now_s = await self.owners(), time.monotonic()
            for shard in tasks - gaps.keys():
                if now.get(shard) != victim:
                    freed.setdefault(shard, now_s)
                if now.get(shard, victim) != victim:
                    gaps[shard] = now_s - freed[shard]
            if not left_s and process.poll() is not None:
                left_s = now_s - began_s
            if now_s - began_s > 120:
                raise SystemExit("the worker was not drained within 120 s")
            await asyncio.sleep(POLL_S)
        again = sum(count - 1 for count in self.site.asked.values()) - twice
        return {"each_task_s": max(gaps.values()), "left_s": left_s, "refetched": again}

    async def master_killed(self) -> dict[str, float]:
        leader = await self.coord.election.leader()
        assert leader is not None
        self.cluster.kill(leader.node)
        keys = [TaskKeys(CLUSTER, Task(JobId(JOB), shard)).meta for shard in range(self.shards)]

        async def is_acting() -> bool:
            terms = await self.client.commands([("HGET", key, "term") for key in keys])
            return all(int(term) > leader.term for term in terms)

        return {"acting_s": await until(is_acting)}

    async def a_kill_a_minute(self) -> dict[str, float]:
        owners = await self.owners()
        (victim, _), *_ = Counter(owners.values()).most_common(1)
        before, pages_before = sum(self.site.asked.values()), len(self.site.asked)
        self.cluster.kill(victim)
        self.cluster.start("worker")
        await asyncio.sleep(60)
        asked = sum(self.site.asked.values()) - before
        again = asked - (len(self.site.asked) - pages_before)
        return {"pages_per_s": (asked - again) / 60, "refetched_percent": 100 * again / asked}

    async def run(self, events: int, minutes: int) -> None:
        for kind, count in (
            (self.worker_killed, events),
            (self.worker_drained, events),
            (self.master_killed, events),
            (self.a_kill_a_minute, minutes),
        ):
            for number in range(count):
                await self.settle()
                figures = await kind()
                name = kind.__name__
                shown = {key: round(value, 3) for key, value in figures.items()}
                print(json.dumps({"event": name, "number": number, **shown}), flush=True)
                for key, value in figures.items():
                    self.figures[f"{name} {key}"].append(value)


async def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--events", type=whole(0), default=5)
    parser.add_argument("--minutes", type=whole(0), default=2)
    parser.add_argument("--lease-ttl", type=real(2), default=10.0)
    parser.add_argument("--workers", type=whole(2), default=3)
    parser.add_argument("--hosts", type=whole(), default=96)
    parser.add_argument("--shards", type=whole(), default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        cluster, site = Cluster(home, arguments), Site(arguments.hosts)
        runner = await site.start()
        try:
            await asyncio.to_thread(
                cluster.call, "up", "--data", str(home / "data"), "--workers", "1"
            )
            running = upstate.load("default", cluster.environment)
            assert running is not None
            cluster.endpoints = [
                *("--etcd", running.etcd, "--redis", running.redis, "--cluster", CLUSTER),
            ]
            await _measure(cluster, site, running, arguments)
        finally:
            cluster.stop_all()
            with contextlib.suppress(SystemExit):
                await asyncio.to_thread(cluster.call, "down")
            await runner.cleanup()


async def _measure(
    cluster: Cluster, site: Site, running: upstate.UpState, arguments: argparse.Namespace
) -> None:
    seeds = [f"http://{address}:{site.port}/0" for address in site.addresses]
    options = [
        *("--id", JOB, "--allow-private", "--delay", "0.2", "--timeout", "2"),
        *("--shards", str(arguments.shards)),
    ]
    cluster.start("master")
    await asyncio.to_thread(cluster.call, "submit", *seeds, *options, *cluster.endpoints)
    coord = await connect(EtcdOptions(endpoints=(running.etcd,)), cluster=CLUSTER)
    client = FrontierClient(RedisOptions(urls=(running.redis,)))
    try:
        stored = await coord.jobs.get(JobId(JOB))
        assert stored is not None
        frontier = JobFrontier(client, cluster=CLUSTER, job=JobId(JOB), spec=stored.job.spec)
        bench = Bench(
            cluster,
            site,
            coord,
            client,
            frontier,
            workers=arguments.workers,
            shards=arguments.shards,
        )
        await bench.run(arguments.events, arguments.minutes)
    finally:
        await client.close()
        await coord.close()
    print(f"\nlease ttl {arguments.lease_ttl:g} s; min, median, max:")
    for name, values in bench.figures.items():
        low, middle, high = min(values), statistics.median(values), max(values)
        print(f"{name:32} {low:8.3f} {middle:8.3f} {high:8.3f}")


if __name__ == "__main__":
    asyncio.run(main())
