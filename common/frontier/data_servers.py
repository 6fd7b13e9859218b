"""The data servers there are: a single one, or the masters of a Redis Cluster and who serves what.

The cluster's own map is read when it is needed first, again when a node does not answer or says
that keys have moved, and not more often than that.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import Final

from common.frontier.addresses import Address, RedisOptions, addresses
from common.frontier.data_server import DataServer
from common.frontier.topology import Topology, parse_nodes, slot_of
from common.model.errors import FrontierUnavailable, SettingsError

LOOK_S: Final = 2.0
"""How long a node may take to tell what the cluster looks like, before another one is asked."""
LOOK_EVERY_S: Final = 0.1
"""The cluster is not looked at more often."""
FRESH_S: Final = 10.0
"""After that time the replicas of a node are counted again before they are relied on."""


class DataServers:
    """The servers of one client."""

    def __init__(self, options: RedisOptions) -> None:
        self._seeds = addresses(options)
        self.endpoint = ",".join(one.endpoint for one in self._seeds)
        self.only: DataServer | None = None
        """The one server, where it is not a cluster."""
        self.topology: Topology | None = None
        """The cluster as it was seen last."""
        self.by_id: dict[str, DataServer] = {}
        """Masters of the cluster that are alive."""
        self._looking = asyncio.Lock()
        self._looked_at = 0.0
        self._is_stale = False

    async def close(self) -> None:
        """Close every connection; calls under way fail."""
        for server in self.all():
            await server.close()

    def all(self) -> list[DataServer]:
        """Return the server, or the masters of the cluster."""
        return list(self.by_id.values()) if self.only is None else [self.only]

    def of(self, key: str) -> DataServer | None:
        """Return the server that holds a key, as far as is known."""
        if self.only is not None or self.topology is None:
            return self.only
        return self.by_id.get(self.topology.owners[slot_of(key)] or "")

    def doubt(self) -> None:
        """Look at the cluster again before it is used next: a node of it did not answer."""
        self._is_stale = True

    async def ready(self) -> None:
        """Know what kind of server there is.

        Raises:
            FrontierUnavailable: none of those named answers.
            SettingsError: they are not nodes of one cluster, or do not take our credentials.
        """
        if self._is_known():
            return
        async with self._looking:
            if not self._is_known():
                await self._discover()

    def _is_known(self) -> bool:
        return self.only is not None or self.topology is not None

    async def _discover(self) -> None:
        """Ask those named what they are: all at once, since one that is away answers late."""
        answers = await asyncio.gather(*map(self._greet, self._seeds))
        ids = {one: found for one, found in answers if isinstance(found, str)}
        if ids:
            await self._look()
        for server, found in answers:
            if found is None and len(answers) == 1:
                self.only = server
            elif found is None:
                self.topology = None
                await server.close()
                raise SettingsError(
                    f"--redis: several URLs are nodes of one Redis Cluster, but {server.endpoint} "
                    "is not in cluster mode; give one URL, or start it with cluster-enabled yes"
                )
        if self.only is None and self.topology is None:
            _, failure = answers[-1]
            assert isinstance(failure, FrontierUnavailable)
            if len(answers) == 1:
                raise failure
            raise FrontierUnavailable(
                f"no node of the Redis Cluster at {self.endpoint} answers; is it running? "
                f"({failure})"
            )
        self._refuse_strangers(ids)

    async def _greet(self, address: Address) -> tuple[DataServer, str | FrontierUnavailable | None]:
        """Return a server with its id in a cluster, None for a single one, or why neither."""
        server = DataServer(address)
        found: str | FrontierUnavailable | None = None
        try:
            async with asyncio.timeout(None if len(self._seeds) == 1 else LOOK_S):
                if (await server.info()).in_cluster:
                    (name,) = await server.commands([("CLUSTER", "MYID")])
                    found = name.decode()
        except TimeoutError:
            found = FrontierUnavailable(f"Redis at {server.endpoint} did not answer in time")
        except FrontierUnavailable as error:
            found = error
        if found is not None:
            await server.close()
        return server, found

    def _refuse_strangers(self, ids: Mapping[DataServer, str]) -> None:
        known = {one.id for one in self.topology.members} if self.topology else set()
        for server, name in ids.items():
            if name not in known:
                self.topology = None
                others = [other.endpoint for other, one in ids.items() if one in known]
                raise SettingsError(
                    f"--redis: {server.endpoint} belongs to another Redis Cluster than "
                    f"{', '.join(others)}; give nodes of one cluster only"
                )

    async def current(self) -> Topology:
        """Return the cluster as it was seen last, or as it is now where that was in doubt."""
        assert self.topology is not None
        if self._is_stale and time.monotonic() - self._looked_at > LOOK_EVERY_S:
            await self.look_again(self.topology)
        return self.topology

    async def fresh(self) -> None:
        """See to it that the cluster was looked at not long ago."""
        if self.topology is not None and time.monotonic() - self._looked_at > FRESH_S:
            await self.look_again(self.topology)

    async def look_again(self, former: Topology) -> None:
        """Look at the cluster, unless somebody did since it was seen like this.

        Raises:
            FrontierUnavailable: no node of it answers.
        """
        async with self._looking:
            if self.topology is not former:
                return  # somebody else did
            await asyncio.sleep(max(0.0, self._looked_at + LOOK_EVERY_S - time.monotonic()))
            await self._look()

    async def _look(self) -> None:
        """Ask nodes until one tells what the cluster looks like, at least as new as it is known."""
        servers = list(self.by_id.values())
        random.shuffle(servers)  # the one that answered last may know the least
        known = {server.address[:2] for server in servers}
        seeds = [
            DataServer(address, in_cluster=True)
            for address in self._seeds
            if address[:2] not in known
        ]
        best: tuple[Topology, Address] | None = None
        try:
            for server in (*servers, *seeds):
                try:
                    async with asyncio.timeout(LOOK_S):
                        (raw,) = await server.commands([("CLUSTER", "NODES")])
                except (TimeoutError, FrontierUnavailable):
                    continue
                seen = Topology(parse_nodes(raw, by_name=server.address.is_tls))
                if best is None or seen.epoch > best[0].epoch:
                    best = seen, server.address
                if self.topology is None or seen.epoch >= self.topology.epoch:
                    break
        finally:
            for server in seeds:
                await server.close()
        if best is None:
            raise FrontierUnavailable(
                f"no node of the Redis Cluster at {self.endpoint} answers; is it running?"
            )
        await self._take(*best)

    async def _take(self, topology: Topology, asked: Address) -> None:
        tags = topology.tags()
        gone = self.by_id
        self.by_id = {}
        for one in topology.masters:
            address = asked.sibling(one.host or asked.host, one.port)
            server = gone.get(one.id)
            if server is None or server.address != address:
                server = DataServer(address, in_cluster=True)
            else:
                del gone[one.id]
            server.tags = tags.get(one.id, ())
            server.replicas = topology.replicas(one.id)
            self.by_id[one.id] = server
        self.topology, self._looked_at, self._is_stale = topology, time.monotonic(), False
        for server in gone.values():
            await server.close()
