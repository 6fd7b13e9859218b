"""Connections of one command to etcd and Redis, opened together and closed when it ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from common.model.ids import JobId

if TYPE_CHECKING:
    from common.coord import Coord
    from common.frontier import FrontierClient, JobFrontier
    from common.frontier.hosts import Hosts
    from common.frontier.letters import DeadLetters
    from common.frontier.lookup import Lookup
    from common.model.job import Job
    from common.runtime.settings import Settings

_PATIENCE_S: Final = 3.0
"""How long a command waits for etcd, and for Redis: somebody waits for it."""


class Services(NamedTuple):
    """Both services of one installation."""

    coord: Coord
    client: FrontierClient
    cluster: str

    def frontier(self, job: Job) -> JobFrontier:
        """Return the shards of a job."""
        from common.frontier import JobFrontier

        return JobFrontier(self.client, cluster=self.cluster, job=JobId(job.id), spec=job.spec)

    def letters(self, job: Job) -> DeadLetters:
        """Return the dead letters of a job."""
        from common.frontier.letters import DeadLetters

        return DeadLetters(self.client, cluster=self.cluster, job=JobId(job.id), spec=job.spec)

    def hosts(self, job: Job) -> Hosts:
        """Return the hosts of a job."""
        from common.frontier.hosts import Hosts

        return Hosts(self.client, cluster=self.cluster, job=JobId(job.id), spec=job.spec)

    def lookup(self, job: Job) -> Lookup:
        """Return what finds single URLs of a job."""
        from common.frontier.lookup import Lookup

        return Lookup(self.client, cluster=self.cluster, job=JobId(job.id), spec=job.spec)


async def open_coord(settings: Settings) -> Coord:
    """Connect to etcd alone; the caller closes it.

    Raises:
        CoordUnavailable: no endpoint answered within seconds.
    """
    from common.coord import EtcdOptions, connect

    return await connect(EtcdOptions.of(settings), cluster=settings.cluster, timeout_s=_PATIENCE_S)


def new_client(settings: Settings) -> FrontierClient:
    """Return a client of Redis that is not yet connected."""
    from common.frontier import FrontierClient, RedisOptions

    return FrontierClient(RedisOptions.of(settings))


@asynccontextmanager
async def coordination(settings: Settings) -> AsyncIterator[Coord]:
    """Connect to etcd for a while.

    Raises:
        CoordUnavailable: no endpoint answered within seconds.
    """
    coord = await open_coord(settings)
    try:
        yield coord
    finally:
        await coord.close()


@asynccontextmanager
async def services(settings: Settings) -> AsyncIterator[Services]:
    """Connect to etcd and Redis for a while.

    Raises:
        ServiceUnavailable: one of them did not answer; the message names its endpoint.
    """
    async with coordination(settings) as coord:
        client = new_client(settings)
        try:
            await client.open(timeout_s=_PATIENCE_S)
            yield Services(coord, client, settings.cluster)
        finally:
            await client.close()
