"""A Redis Cluster of real processes: masters, their replicas, and what an operator does to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import redis

from tests.support.servers import RedisServer, free_ports

NODE_TIMEOUT_MS: Final = 5000
_WITHIN_S: Final = 90.0
SLOTS: Final = 16_384


class RedisCluster:
    """At the start ``masters`` share the slots, and ``replicas[n]`` follows ``masters[n]``."""

    def __init__(self, masters: Sequence[RedisServer], replicas: Sequence[RedisServer]) -> None:
        self.masters = list(masters)
        self.replicas = list(replicas)

    @property
    def servers(self) -> list[RedisServer]:
        return self.masters + self.replicas

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(one.url for one in self.masters)

    @property
    def url(self) -> str:
        """As ``--redis`` takes it."""
        return ",".join(self.urls)

    def stop(self) -> None:
        for server in self.servers:
            server.kill()

    def owner_of(self, key: str) -> RedisServer:
        """Return the server that serves a key."""
        return self.owner_of_slot(slot_of(key))

    def owner_of_slot(self, slot: int) -> RedisServer:
        for server in self.servers:
            if server.is_running and slot in served(server):
                return server
        raise AssertionError(f"nobody serves slot {slot}")

    def wait_whole(self) -> None:
        """Return once every server that runs sees all slots served."""
        for server in self.servers:
            if server.is_running:
                wait_until(lambda one=server: _info(one)["cluster_state"] == "ok")  # type: ignore[misc]

    def open_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Begin to move a slot: from now on both know, and none of its keys has moved."""
        command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", name_of(source))
        command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", name_of(target))

    def move_keys(
        self,
        slot: int,
        source: RedisServer,
        target: RedisServer,
        *,
        count: int = 1000,
        only: Callable[[bytes], bool] = lambda _: True,
    ) -> int:
        """Move up to ``count`` keys of a slot that is open; return how many there were."""
        found = command(source, "CLUSTER", "GETKEYSINSLOT", slot, count)
        keys = [key for key in found if only(key)]
        if keys:
            command(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def close_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Let the target serve the slot, all keys of which are there."""
        others = [one for one in self.masters if one.is_running and one not in (source, target)]
        for server in (target, source, *others):
            command(server, "CLUSTER", "SETSLOT", slot, "NODE", name_of(target))

    def move_slot(self, slot: int, target: RedisServer) -> None:
        source = self.owner_of_slot(slot)
        self.open_slot(slot, source, target)
        while self.move_keys(slot, source, target):
            pass
        self.close_slot(slot, source, target)

    def wait_replicated(self, master: RedisServer) -> None:
        """Return once the replica of a master has all that the master has."""
        with contextlib.closing(redis.Redis(port=master.port, socket_timeout=60)) as one:
            one.set(f"crawlctl:{{{_tag_on(served(master))}}}:waited", 1)
            assert one.wait(1, 30_000) == 1

    def cut_off_replica(self, master: RedisServer) -> None:
        """From now on the replica gets nothing new, though the cluster sees both of them.

        It asks with a wrong password once a second. (Where the master refuses PSYNC instead, it
        asks again without a pause, and at times waits out repl-timeout, a minute, amid that.)
        """
        self._set_password(master, "cut off")
        command(master, "CLIENT", "KILL", "TYPE", "REPLICA")

    def let_replica_follow(self, master: RedisServer) -> None:
        """End what :meth:`cut_off_replica` has begun."""
        self._set_password(master, "")

    def _set_password(self, master: RedisServer, password: str) -> None:
        """Set what the replica of a master tells it to be let in."""
        replica = self.replicas[self.masters.index(master)]
        command(replica, "CONFIG", "SET", "masteruser", password, "masterauth", password)

    def wait_taken_over(self, replica: RedisServer) -> None:
        """Return once a replica has become a master and all slots are served again."""
        wait_until(lambda: command(replica, "ROLE")[0] == b"master")
        self.wait_whole()


def _tag_on(slots: set[int]) -> int:
    return next(number for number in range(SLOTS) if slot_of(f"{number}") in slots)


def slot_of(key: str) -> int:
    return int(redis.crc.key_slot(key.encode()))


def command(server: RedisServer, *words: str | bytes | int) -> Any:
    """Run one command on one server, whatever it serves."""
    with contextlib.closing(redis.Redis(port=server.port, socket_timeout=10)) as one:
        one.response_callbacks.clear()
        return one.execute_command(*words)


def name_of(server: RedisServer) -> str:
    """Return the id of a node."""
    return str(command(server, "CLUSTER", "MYID").decode())


def served(server: RedisServer) -> set[int]:
    """Return the slots that a server says it serves."""
    found: set[int] = set()
    for line in command(server, "CLUSTER", "NODES").decode().splitlines():
        _, _, flags, *_ = line.split()
        if "myself" in flags and "master" in flags:
            for one in line.split()[8:]:
                if not one.startswith("["):
                    first, _, last = one.partition("-")
                    found.update(range(int(first), int(last or first) + 1))
    return found


def wait_until(holds: Callable[[], object], *, within_s: float = _WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"did not happen within {within_s} s"
        time.sleep(0.05)


@contextlib.contextmanager
def redis_cluster(
    folder: Path,
    *,
    masters: int = 3,
    replicas: bool = False,
    options: Sequence[str] = (),
    start: Callable[..., RedisServer],
) -> Iterator[RedisCluster]:
    """Run a cluster for a while.

    Args:
        folder: for the data and the logs of all.
        masters: how many; they share the slots.
        replicas: give each master one.
        options: of every server.
        start: starts a server with its data in a folder, with ``options``.
    """
    servers: list[RedisServer] = []
    try:
        buses = {}
        for number in range(masters * (2 if replicas else 1)):
            (bus,) = free_ports(1)
            servers.append(
                start(
                    folder / f"n{number}",
                    options=(
                        *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
                        *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
                        *("--repl-diskless-sync-delay", "0"),
                        *options,
                    ),
                )
            )
            buses[servers[-1]] = bus
        cluster = RedisCluster(servers[:masters], servers[masters:])
        _form(cluster, buses)
        yield cluster
    finally:
        for server in servers:
            server.kill()


def _form(cluster: RedisCluster, buses: dict[RedisServer, int]) -> None:
    count = len(cluster.masters)
    for number, server in enumerate(cluster.servers):
        command(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for number, server in enumerate(cluster.masters):
        first, end = SLOTS * number // count, SLOTS * (number + 1) // count
        command(server, "CLUSTER", "ADDSLOTSRANGE", first, end - 1)
    begin = cluster.servers[0]
    for server in cluster.servers[1:]:
        command(server, "CLUSTER", "MEET", "127.0.0.1", begin.port, buses[begin])
    for server in cluster.servers:
        wait_until(
            lambda one=server: int(_info(one)["cluster_known_nodes"]) == len(cluster.servers)  # type: ignore[misc]
        )
    cluster.wait_whole()
    for master, replica in zip(cluster.masters, cluster.replicas, strict=False):
        command(replica, "CLUSTER", "REPLICATE", name_of(master))
    for replica in cluster.replicas:
        wait_until(
            lambda one=replica: b"master_link_status:up" in command(one, "INFO", "replication")  # type: ignore[misc]
        )
        # A replica that nobody knows as one yet could not take over.
    for server in cluster.servers:
        wait_until(
            lambda one=server: (  # type: ignore[misc]
                command(one, "CLUSTER", "NODES").count(b"slave") == len(cluster.replicas)
            )
        )


def _info(server: RedisServer) -> dict[str, str]:
    lines = command(server, "CLUSTER", "INFO").decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
