"""The way to the data: one Redis or Valkey server, or a Redis Cluster of several.

All keys of a task have one hash tag, so that every call goes to one node. Which one is looked up in
the cluster's own map, which is read again when a node says MOVED (nothing was done then, and the
call goes to the right node) or does not answer. A slot that is on its way to another node is waited
for (``SlotMoving``): no script of ours could run on a part of its keys.

Server runs (design rule P6), durability (P7) and clocks are those of the node that holds a key. A
shard that another node serves after a migration or a failover so meets another run, and is adopted
again like one whose server was restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from common.frontier.addresses import RedisOptions
from common.frontier.clock import ServerClock
from common.frontier.data_server import DataServer
from common.frontier.data_servers import DataServers
from common.frontier.routing import Router
from common.frontier.scripts import Call
from common.frontier.server import ServerInfo
from common.frontier.topology import Topology, key_of, parse_nodes, slot_of
from common.model.errors import FrontierUnavailable, SettingsError
from common.runtime.settings import OPEN_TIMEOUT_S

OLDEST_VERSION: Final = (6, 2)


class FrontierClient:
    """Runs scripts and plain commands where their keys are."""

    def __init__(self, options: RedisOptions) -> None:
        self._servers = DataServers(options)
        self.endpoint = self._servers.endpoint
        self._router = Router(self._servers)

    async def open(self, *, timeout_s: float = OPEN_TIMEOUT_S) -> None:
        """Connect once, and check that the servers can hold a frontier; else close again.

        Raises:
            FrontierUnavailable: no answer within ``timeout_s`` seconds. Of a cluster one node is
                enough.
            SettingsError: wrong password, too old a server, one that evicts keys, or URLs that are
                not nodes of one cluster.
        """
        try:
            async with asyncio.timeout(timeout_s):
                for endpoint, info in (await self.infos()).items():
                    if isinstance(info, ServerInfo):
                        _check_server(endpoint, info)
        except TimeoutError as error:
            await self.close()
            raise FrontierUnavailable(
                f"Redis at {self.endpoint} did not answer within {timeout_s:g} s; is it running?"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        await self._servers.close()

    async def infos(self) -> dict[str, ServerInfo | FrontierUnavailable]:
        """Return what each server says of itself, by endpoint.

        Raises:
            FrontierUnavailable: none of them answers.
        """
        servers = await self.servers()
        answers = await asyncio.gather(
            *(server.info() for server in servers), return_exceptions=True
        )
        found: dict[str, ServerInfo | FrontierUnavailable] = {}
        for server, answer in zip(servers, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, FrontierUnavailable):
                raise answer
            found[server.endpoint] = answer
        failures = [one for one in found.values() if isinstance(one, FrontierUnavailable)]
        if len(failures) == len(found):
            raise failures[0]
        return found

    async def servers(self) -> list[DataServer]:
        """Return the server, or every master of the cluster as it is now."""
        await self.topology()
        return self._servers.all()

    async def topology(self) -> Topology | None:
        """Return the cluster as it is now; None for a single server."""
        await self._servers.ready()
        if self._servers.topology is not None:
            await self._servers.look_again(self._servers.topology)
        return self._servers.topology

    async def moving(self) -> list[str]:
        """Return the slots of a cluster that are on their way, as its nodes say of themselves.

        Each as ``SLOT from ENDPOINT`` or ``SLOT to ENDPOINT``; who does not answer says nothing.
        """
        if await self.topology() is None:
            return []
        found = []
        for server in self._servers.all():
            try:
                (raw,) = await server.commands([("CLUSTER", "NODES")])
            except FrontierUnavailable:
                continue
            for mark in (
                one for each in parse_nodes(raw, by_name=False) for one in each.open_slots
            ):
                slot, direction, _ = mark.strip("[]").split("-", 2)
                found.append(f"{slot} {'from' if direction == '>' else 'to'} {server.endpoint}")
        return found

    # -------------------------------------------------------------------------- calls and commands

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts, in one round trip a node; one reply each, in order.

        Raises:
            FrontierUnavailable: no answer, or a server does not take them for now. Any of the calls
                may have run: each is safe to repeat, but a claim's reply must then be recovered.
            ScriptBug: a script failed.
        """
        if self._servers.only is not None:
            return await self._servers.only.call(calls)
        return _all_or_none(await self.try_call(calls))

    async def try_call(self, calls: Sequence[Call]) -> list[Any]:
        """Run scripts as :meth:`call` does, with what their node raised in place of a reply.

        Raises:
            ScriptBug: a script failed.
        """
        return await self._router.spread(calls, [one.keys[0] for one in calls], DataServer.call)

    async def commands(
        self, commands: Sequence[tuple[str | bytes | int | float, ...]]
    ) -> list[Any]:
        """Run plain commands, each about one key, in one round trip a node.

        Raises:
            FrontierUnavailable: as for :meth:`call`.
        """
        await self._servers.ready()
        if self._servers.only is not None:
            return await self._servers.only.commands(commands)
        keys = [key_of(one) for one in commands]
        return _all_or_none(await self._router.spread(commands, keys, DataServer.commands))

    async def times_ms(self, keys: Sequence[str]) -> list[int]:
        """Return the time now, by the clock of the server that holds each key (Unix ms)."""
        return _all_or_none(await self._router.spread(keys, keys, _times_ms))

    async def probe(self) -> None:
        """Find out whether a server lets scripts write now; changes nothing.

        Raises:
            FrontierUnavailable: none of them does; says why.
        """
        await self._servers.ready()
        if self._servers.topology is not None:
            await self._servers.current()
        probes = [server.probe() for server in self._servers.all()]
        answers = await asyncio.gather(*probes, return_exceptions=True)
        failures = [one for one in answers if one is not None]
        if failures:
            self._servers.doubt()
        for one in failures:
            if len(failures) == len(answers) or not isinstance(one, FrontierUnavailable):
                raise one

    # ------------------------------------------------------------------- runs, durability, clocks

    async def current_runs(self, keys: Sequence[str]) -> list[str]:
        """Return the run id of the server that holds each key now.

        Raises:
            FrontierUnavailable: one did not answer, or the key is being moved.
        """
        return _all_or_none(await self._router.spread(keys, keys, DataServer.runs))

    async def current_run(self, key: str) -> str:
        """Return the run id of the server that holds a key now."""
        (run,) = await self.current_runs([key])
        return run

    async def wait_durable(self, keys: Sequence[str]) -> list[str]:
        """Return once the servers of these keys keep all that they have acknowledged before.

        See :meth:`~common.frontier.durable.Durable.wait`.

        Returns:
            For each key the server run that keeps it. What was acknowledged by another run may be
            lost: compare.
        """
        await self._servers.fresh()
        return _all_or_none(await self._router.spread(keys, keys, _wait_durable))

    def known_run(self, key: str) -> str:
        """Return the run of the server that holds a key, as it answered last; "" if none has."""
        server = self._servers.of(key)
        return "" if server is None else server.run_id

    @property
    def is_cluster(self) -> bool:
        """Whether there are several servers, each with a log of its own.

        In the one log of a single server what comes later implies what came earlier; here one may
        lose what the other relies on.
        """
        return self._servers.topology is not None

    @property
    def is_durable(self) -> bool:
        """Whether a new server run has all that was acknowledged before.

        Never said of a cluster: a replica, or a node that keys were moved to, is another server.
        """
        return self._servers.only is not None and self._servers.only.is_durable

    def clock(self, key: str) -> ServerClock:
        """Return what is known of the clock of the server that holds a key."""
        server = self._servers.of(key)
        return ServerClock() if server is None else server.clock

    async def check_whole(self, keys: Sequence[str]) -> None:
        """Make sure that the slots of these keys lie on one node each.

        A Redis that took over in the middle of a migration knows nothing of it (Valkey 8 does):
        what was moved already is missing there, and it says so as if it had never been.

        Raises:
            FrontierUnavailable: some keys lie on another node than the one that serves the slot, or
                a node did not answer.
        """
        topology = await self.topology()
        if topology is None:
            return
        slots = sorted({slot_of(key) for key in keys})
        for owner, server in self._servers.by_id.items():
            others = [slot for slot in slots if topology.owners[slot] != owner]
            if not others:
                continue
            asked = [("CLUSTER", "COUNTKEYSINSLOT", slot) for slot in others]
            for slot, count in zip(others, await server.commands(asked), strict=True):
                if count:
                    raise FrontierUnavailable(
                        f"slot {slot} of the Redis Cluster is half moved: {count} keys of it lie "
                        f"on {server.endpoint}, which does not serve it; if nobody is moving it, "
                        f"run redis-cli --cluster fix {server.endpoint}"
                    )


def _check_server(endpoint: str, info: ServerInfo) -> None:
    if tuple(int(part) for part in info.version.split(".")[:2]) < OLDEST_VERSION:
        raise SettingsError(f"--redis: the server at {endpoint} is {info.version}; 6.2 is needed")
    if info.eviction != "noeviction":
        raise SettingsError(
            f"--redis: the server at {endpoint} may evict keys (maxmemory-policy "
            f"{info.eviction}); set it to noeviction, or URLs would be lost"
        )


def _all_or_none(replies: list[Any]) -> list[Any]:
    for one in replies:
        if isinstance(one, FrontierUnavailable):
            raise one
    return replies


async def _wait_durable(server: DataServer, keys: list[str]) -> list[str]:
    return [await server.durable.wait()] * len(keys)


async def _times_ms(server: DataServer, keys: list[str]) -> list[int]:
    ((seconds, micros),) = await server.commands([("TIME",)])
    return [int(seconds) * 1000 + int(micros) // 1000] * len(keys)
