"""The laboratory: real servers, real nodes, a site, a network of proxies and the observers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import redis.asyncio

import crawlctl
from common.coord import Coord, EtcdOptions, connect
from tests.chaos import site
from tests.chaos.clocks import Clocks
from tests.chaos.graph import Graph, Ref
from tests.chaos.history import Fault, History, Request, Result
from tests.chaos.network import Network
from tests.chaos.nodes import UNREACHABLE, Node, Slots
from tests.chaos.observers import EtcdObserver, RedisObserver
from tests.support.etcdusers import PASSWORD, USER, with_users
from tests.support.servers import (
    EtcdCluster,
    RedisServer,
    dying_with_parent,
    start_etcd_cluster,
    start_redis,
)

CLUSTER = "lab"
JOB = "chaos"
LEASE_TTL_S = 6.0
WORKERS, MASTERS = 3, 2
_START_S = 90.0
_COMMAND_S = 90.0
_TRIES = 5
_LOOK_S = 0.05
FINAL = ("finished", "failed", "damaged", "cancelled")


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What a lab is made of."""

    graph: Graph
    tree: Path = Path(crawlctl.__file__).parents[1]
    """Where the packages under test lie."""
    options: Mapping[str, Any] = {}
    """Of the job; what is not named is as in ``OPTIONS``."""
    workers: int = WORKERS
    masters: int = MASTERS
    appendfsync: str = "always"
    etcd_size: int = 3
    lease_ttl_s: float = LEASE_TTL_S
    idle: frozenset[str] = frozenset()
    """Slots that are not started at first."""
    users: bool = False
    """etcd asks for a user and a password."""
    clocks: bool = False
    """The clocks of Redis and of the nodes can be set."""


OPTIONS: Mapping[str, Any] = {"delay": 0.25, "per_host": 1, "shards": 8, "timeout": 3}


class Lab:
    """Use with :func:`laboratory`."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        self.setup = setup
        self.folder = folder
        self.options = {**OPTIONS, **setup.options}
        self.network = Network()
        self.slots = Slots(folder, setup.tree, lease_ttl_s=setup.lease_ttl_s)
        self.faults: list[Fault] = []
        self.added: list[Ref] = []
        """Seeds added while the job ran."""
        self.maybe_added: list[Ref] = []
        """The same, where the command did not say that they were."""
        self.clocks = Clocks(folder / "clocks") if setup.clocks else None
        self.servers_busy = asyncio.Lock()
        """Held while a server is started or ended."""
        self.etcd: EtcdCluster
        self.redis: RedisServer
        self.coord: Coord
        self.seen_etcd: EtcdObserver
        self.seen_redis: RedisObserver
        self.ports: list[int] = []
        self._site: subprocess.Popen[bytes] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---------------------------------------------------------------------------------- start, end

    async def open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._start_site()
        etcd = asyncio.to_thread(start_etcd_cluster, self.folder / "etcd", self.setup.etcd_size)
        data = asyncio.to_thread(self._start_redis)
        self.etcd, self.redis = await asyncio.gather(etcd, data)
        options = EtcdOptions(endpoints=self.etcd.endpoints)
        self.coord = await connect(options, cluster=CLUSTER, timeout_s=_START_S)
        if self.setup.users:
            await with_users(self.coord)
            await self.coord.close()
            known = replace(options, user=USER, password=PASSWORD)
            self.coord = await connect(known, cluster=CLUSTER, timeout_s=_START_S)
            self.slots.common["CRAWLCTL_ETCD_USER"] = f"{USER}:{PASSWORD}"
        self.seen_etcd = EtcdObserver(self.coord)
        self.seen_redis = RedisObserver(
            self.redis.port,
            lambda port: self.network.node_at("redis", port),
            own_clock=self.setup.clocks,
        )
        self._tasks = [
            asyncio.create_task(self.seen_etcd.run()),
            asyncio.create_task(self.seen_redis.run()),
        ]
        await self.seen_redis.is_listening.wait()
        for role, count in (("worker", self.setup.workers), ("master", self.setup.masters)):
            for number in range(1, count + 1):
                slot = f"{role[0]}{number}"
                for member in self.etcd.members:
                    await self.network.connect(slot, "etcd", member.endpoint)
                await self.network.connect(slot, "redis", f"127.0.0.1:{self.redis.port}")
                if self.clocks is not None:
                    self.slots.extra[slot] = self.clocks.environment(slot)
        self.ports = await self._site_ports()

    def _start_redis(self) -> RedisServer:
        return start_redis(
            self.folder / "redis",
            appendfsync=self.setup.appendfsync,
            environment=os.environ | self.clocks.environment("redis") if self.clocks else None,
        )

    def _start_site(self) -> None:
        (self.folder / "graph.json").write_bytes(msgspec.json.encode(self.setup.graph))
        self._site = subprocess.Popen(
            [*dying_with_parent(), sys.executable, "-I", site.__file__, str(self.folder)],
            stdin=subprocess.DEVNULL,
        )

    async def _site_ports(self) -> list[int]:
        deadline = time.monotonic() + _START_S
        while not (path := self.folder / "ports.json").exists():
            assert time.monotonic() < deadline, "the site did not start"
            await asyncio.sleep(_LOOK_S)
        ports: list[int] = json.loads(path.read_text())
        return ports

    async def close(self) -> None:
        self.slots.end_all()
        if self._site is not None:
            self._site.kill()
            self._site.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.network.close()
        if hasattr(self, "coord"):
            await self.coord.close()
        for name in ("redis", "etcd"):
            if hasattr(self, name):
                server = getattr(self, name)
                await asyncio.to_thread(server.kill if name == "redis" else server.stop)

    # --------------------------------------------------------------------------------------- nodes

    def slot_names(self, role: str) -> list[str]:
        count = self.setup.workers if role == "worker" else self.setup.masters
        return [f"{role[0]}{number}" for number in range(1, count + 1)]

    def start_node(self, slot: str) -> Node:
        role = "worker" if slot.startswith("w") else "master"
        etcd = self.network.of(slot, "etcd")
        (data,) = self.network.of(slot, "redis")
        for pair in (*etcd, data):
            pair.label = self.slots.next_id(slot)
        more = ["--concurrency", "16"] if role == "worker" else []
        return self.slots.start(
            slot,
            role,
            [
                "--cluster", CLUSTER, "--etcd", ",".join(pair.endpoint for pair in etcd),
                "--redis", f"redis://{data.endpoint}/0", *more,
            ],
        )  # fmt: skip

    def start_nodes(self) -> None:
        for role in ("master", "worker"):
            for slot in self.slot_names(role):
                if slot not in self.setup.idle:
                    self.start_node(slot)

    def node(self, slot: str) -> Node | None:
        return self.slots.current.get(slot)

    def master(self) -> Node | None:
        """Return the acting master, as etcd has it."""
        change = self.seen_etcd.latest("election/master")
        if change is None or not change.created:
            return None
        return next(
            (node for node in self.slots.current.values() if node.id == change.value["node"]), None
        )

    async def wait_for_nodes(self) -> None:
        """Return once every slot's process is a member of the cluster."""
        deadline = time.monotonic() + _START_S
        while not all(
            (seen := self.seen_etcd.latest(f"nodes/{node.id}")) and seen.created
            for node in self.slots.current.values()
        ):
            assert time.monotonic() < deadline, "the nodes did not start"
            await asyncio.sleep(_LOOK_S)

    async def watch_nodes(self) -> None:
        """Start again what could not reach its services at its start, as a supervisor would."""
        while True:
            for node in self.slots.look():
                self.start_node(node.slot)
            await asyncio.sleep(_LOOK_S * 4)

    # ------------------------------------------------------------------------------------ commands

    async def command(self, *arguments: str, check: bool = True) -> str:
        """Run crawlctl against the services themselves, past every cut; return what it printed."""
        for _ in range(_TRIES):
            code, out, err = await self.try_command(*arguments)
            if code != UNREACHABLE:  # on a machine that is too busy for once
                break
        assert not check or code == 0, f"{arguments}: {err}"
        return out

    async def try_command(self, *arguments: str) -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "crawlctl", *arguments,
            "--cluster", CLUSTER, "--etcd", ",".join(self.etcd.endpoints),
            "--redis", self.redis.url,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.slots.environment(),
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), _COMMAND_S)
        except BaseException:
            process.kill()
            raise
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def submit(self) -> None:
        seeds = [f"http://127.0.0.1:{self.ports[host]}{path}" for host, path in self.seeds()]
        options: list[str] = []
        for name, value in self.options.items():
            options += [f"--{name.replace('_', '-')}", str(value)]
        await self.command("submit", *seeds, "--id", JOB, "--allow-private", *options)

    def seeds(self) -> Sequence[tuple[int, str]]:
        return self.setup.graph.seeds

    def job_state(self) -> str | None:
        change = self.seen_etcd.latest(f"jobs/{JOB}")
        return None if change is None or not change.created else change.value["state"]

    async def ended(self, *, within_s: float) -> bool:
        """Wait until the job is over; False when it is not in time."""
        deadline = time.monotonic() + within_s
        while self.job_state() not in FINAL:
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    # ------------------------------------------------------------------------------------- history

    async def history(self, *, seed: int, profile: str) -> History:
        """Gather everything, after the end."""
        await self.seen_etcd.settle()
        shown = await self.command("job", "show", JOB, "--json")
        exported = await self.command("export", JOB, check=False)
        return History(
            seed=seed,
            profile=profile,
            graph=self.setup.graph,
            ports=self.ports,
            delay_s=float(self.options["delay"]),
            per_host=int(self.options["per_host"]),
            max_pages=self.options.get("max_pages"),
            requests=self._requests(),
            changes=self.seen_etcd.changes,
            writes=self.seen_redis.writes,
            results=await self._results(),
            exported=[json.loads(line) for line in exported.splitlines()],
            faults=self.faults,
            added=self.added,
            maybe_added=self.maybe_added,
            final=json.loads(shown),
            died=self.slots.died,
            tracebacks=self.slots.tracebacks(),
            wall_minus_monotonic=time.time() - time.monotonic(),
        )

    def _requests(self) -> list[Any]:
        raw = (self.folder / "requests.jsonl").read_text()
        lines = ",".join(line for line in raw.splitlines() if line.endswith("}"))
        names = Request.__struct_fields__
        return [Request(**{name: one[name] for name in names}) for one in json.loads(f"[{lines}]")]

    async def _results(self) -> list[Result]:
        found = []
        async with redis.asyncio.Redis(port=self.redis.port) as client:
            for shard in range(int(self.options["shards"])):
                key = f"crawlctl:{CLUSTER}:{{{JOB}:{shard}}}:results"
                for name, fields in await client.xrange(key):
                    record = json.loads(fields[b"r"])
                    found.append(Result(shard, name.decode(), record))
        return found


@contextlib.asynccontextmanager
async def laboratory(setup: Setup, folder: Path, *, submits: bool = True) -> AsyncIterator[Lab]:
    """Open a lab, its nodes running and its job submitted; nothing is left of it after."""
    lab = Lab(setup, folder)
    try:
        await lab.open()
        lab.start_nodes()
        watching = asyncio.create_task(lab.watch_nodes())
        lab._tasks.append(watching)
        await lab.wait_for_nodes()
        if submits:
            await lab.submit()
        yield lab
    finally:
        await lab.close()
