"""A job's results in pages: all there are now, or all that come until the job is over.

Nothing is consumed. Not promised: the order of records of different shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from common.model import counters
from common.model.errors import ServiceUnavailable
from common.model.job import JobState
from crawlctl.jobview import look_at, stored_job
from crawlctl.sink import START

if TYPE_CHECKING:
    from crawlctl.connect import Services

PAGE: Final = 500
"""Records read at once from a shard: about half a megabyte."""
POLL_S: Final = 0.25
_RETRY_S: Final = 0.5

log = structlog.get_logger()


class _URL(msgspec.Struct, frozen=True):
    url: str


class _Once:
    """Lets one record of each URL pass, where a visit puts a new one behind those already read.

    Kept for one shard at a time: a hash of each URL read.
    """

    _decode = msgspec.json.Decoder(_URL).decode

    def __init__(self) -> None:
        self._read: set[int] = set()

    def of(self, records: list[bytes]) -> list[bytes]:
        """Return those of URLs not met before."""
        fresh = []
        for record in records:
            url = hash(self._decode(record).url)
            if url not in self._read:
                self._read.add(url)
                fresh.append(record)
        return fresh


class Reader:
    """Reads a job's results from the beginning, each once."""

    def __init__(self, services: Services, job_id: str) -> None:
        self._services = services
        self._job_id = job_id
        self._after: dict[int, str] = {}
        self._follows = False

    async def pages(self) -> AsyncIterator[list[bytes]]:
        """Yield pages of records until there are no more for now.

        Raises:
            NotFoundError: there is no such job.
            ServiceUnavailable: a service did not answer; call again to go on behind the last page.
        """
        stored = await stored_job(self._services, self._job_id)
        frontier = self._services.frontier(stored.job)
        may_come_twice = stored.job.spec.recrawl is not None and not self._follows
        for shard in range(stored.job.spec.shards):
            once = _Once() if may_come_twice else None
            while True:
                after = self._after.get(shard, START)
                entries = await frontier.results(shard, after=after, count=PAGE)
                if entries:
                    self._after[shard] = entries[-1][0]
                    records = [record for _, record in entries]
                    yield records if once is None else once.of(records)
                if len(entries) < PAGE:
                    break

    async def following(self) -> AsyncIterator[list[bytes]]:
        """Yield pages of records as they come, until the job is over and all of it was read.

        Of a page that is visited again there are several. A service that is away for a while is
        waited for.
        """
        self._follows = True
        while True:
            try:
                over = await is_over(self._services, self._job_id)
                async for page in self.pages():
                    yield page
            except ServiceUnavailable as error:
                await wait_for_service(error)
                continue
            if over:
                return
            await asyncio.sleep(POLL_S)

    async def trimmed(self) -> int:
        """Return how many of the job's records are gone because every consumer group has them."""
        stored = await stored_job(self._services, self._job_id)
        look = await look_at(self._services, stored.job)
        return sum(one.trimmed for one in look.stats)


async def is_over(services: Services, job_id: str) -> bool:
    """Tell whether no record will be added to what can be read after this.

    A cancelled job still records what it drops.
    """
    stored = await stored_job(services, job_id)
    if not stored.job.state.is_final:
        return False
    if stored.job.state is not JobState.CANCELLED:
        return True
    counted = (await look_at(services, stored.job)).counters
    return sum(counted[name] for name in counters.WAITING) == 0


async def wait_for_service(error: ServiceUnavailable) -> None:
    """Say what is waited for, and wait a moment."""
    log.warning("export.waiting", reason=str(error))
    await asyncio.sleep(_RETRY_S)
