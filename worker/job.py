"""What a worker process keeps once per job: the fetcher, robots rules, the parser, the way out.

Shared by all tasks of the job in this process, so that connections, cookies, robots.txt and the
cache of seen links are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from common.frontier.client import FrontierClient
from common.frontier.ledger import Ledger
from common.frontier.offers import Offers
from common.frontier.pace import Permits
from common.frontier.scope import ScopeSet
from common.model.ids import HostKey, JobId, NodeId, Token
from common.model.job import JobSpec
from common.web.directives import agent_of
from common.web.retry import RetryPolicy
from worker.agenda import Agenda
from worker.capacity import Share
from worker.fetch import Fetcher
from worker.groups import groups_of
from worker.outlinks import Outlinks
from worker.pacer import Pacer
from worker.parsing import PageParser
from worker.patience import Patience
from worker.revisits import Revisits
from worker.robots import RobotsCache
from worker.sitemaps import Sitemaps
from worker.stages import Stages
from worker.visit import HOLD_S

if TYPE_CHECKING:
    from worker.plugins import JobPlugins
    from worker.warc import Archive
    from worker.warc_recorder import Recorder


class JobContext:
    """One job in one worker process."""

    def __init__(
        self,
        client: FrontierClient,
        *,
        cluster: str,
        job: JobId,
        spec: JobSpec,
        node: NodeId,
        connections: int,
        places: Share,
        stages: Stages,
        token: Token,
        dead_below: int = 0,
        archive: Archive | None = None,
        plugins: JobPlugins | None = None,
    ) -> None:
        """Prepare.

        Args:
            client: the data server.
            cluster: the name of everything.
            job: which.
            spec: its options.
            node: this process.
            connections: requests at one time.
            places: this job's share of the process.
            stages: told how long the steps of a page take.
            token: of a task of the job owned here, which names this process among its permits.
            dead_below: tokens below it belong to processes known to be dead.
            archive: where responses are kept.
            plugins: those the job names, opened; closed with the rest.
        """
        self.id = job
        self.spec = spec
        self.node = node
        self.places = places
        """For the pages worked on at once; what is left to a job of the process' capacity."""
        self.stages = stages
        self.archive = archive
        """Where responses are kept, for a job that asks for it."""
        self.fetcher = Fetcher(
            spec, connections=connections, stages=stages, recorder=_recorder(archive)
        )
        groups = groups_of(spec, self.fetcher.addresses)
        lasts_s = spec.timeout if groups is None else spec.timeout + HOLD_S
        lasts_ms = int(lasts_s * 1000)
        permits = Permits(
            client, cluster=cluster, token=token, dead_below=dead_below, lasts_ms=lasts_ms
        )
        self.pacer = Pacer(permits, per_host=spec.per_host, groups=groups)
        self.patience = Patience(timeout_s=spec.timeout)
        self.robots = RobotsCache(self.fetcher, spec, self.pacer, self.patience)
        agent = agent_of(spec.user_agent)
        self.parser = PageParser(
            frozenset(spec.follow), places.heavy.aside, agent=agent, with_simhash=spec.simhash
        )
        self.agent = agent
        """Our product token, by which pages and robots.txt may address us."""
        self.retry = RetryPolicy(spec.retries)
        self.offers = Offers(client, cluster=cluster, job=job, spec=spec)
        self.ledger = _ledger(client, cluster, job, spec)
        """Pages of each host, where shards share hosts and the pages are limited."""
        self.plugins = plugins
        """None for a job that names none."""
        self.revisits = None if spec.recrawl is None else Revisits(spec)
        """For a job whose pages are visited again."""
        self.outlinks = Outlinks(ScopeSet(client, cluster=cluster, job=job), spec, plugins)
        self.sitemaps = Sitemaps(spec, self.outlinks, self.robots, self.parser)
        self.agendas: dict[int, Agenda] = {}
        """By shard owned here; told when URLs were offered to it."""

    @property
    def has_failed(self) -> bool:
        """Tell that no page of the job can be committed any more: its response cannot be kept."""
        return self.archive is not None and self.archive.failure is not None

    def offered(self, shard: int, hosts: Iterable[HostKey]) -> None:
        """Tell the owner of a shard, if it is here, that URLs of these hosts were queued."""
        if agenda := self.agendas.get(shard):
            agenda.offered(hosts)

    async def close(self) -> None:
        """Close connections to sites, give back permits, and finish the archive."""
        await self.fetcher.close()
        await self.pacer.close()
        if self.archive is not None:
            await self.archive.close()
        if self.plugins is not None:
            await self.plugins.close()


def _ledger(client: FrontierClient, cluster: str, job: JobId, spec: JobSpec) -> Ledger | None:
    if spec.shard_by == "url" and spec.max_pages_per_host is not None:
        return Ledger(client, cluster=cluster, job=job, spec=spec)
    return None


def _recorder(archive: Archive | None) -> Recorder | None:
    if archive is None:
        return None
    from worker.warc_recorder import Recorder  # noqa: PLC0415 - few jobs need it

    return Recorder(archive)
