"""Reading a job's results as a consumer group, into a file or to standard output.

Each round takes what is new, writes it, makes that final, acknowledges, and only then trims what
every group has acknowledged. Into a file each record goes exactly once, whenever the process dies;
to standard output at least once, since nobody can tell what became of what was written last.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from common.frontier.results import Given, ResultGroup
from common.model.errors import ServiceUnavailable
from common.model.ids import JobId
from crawlctl.export.reading import PAGE, POLL_S, is_over, wait_for_service
from crawlctl.export.targets import StandardOutput
from crawlctl.jobview import stored_job
from crawlctl.sink import START

if TYPE_CHECKING:
    from crawlctl.connect import Services

_SETTLE_EVERY: Final = 10_000
"""Records written before they are made final and acknowledged."""


class Target(Protocol):
    """Where a reader's records go."""

    settle_every_s: float
    """Least time from one :meth:`save` to the next, while nothing presses."""

    @property
    def reader(self) -> str:
        """Under which name they are read."""

    def last(self, shard: int) -> str:
        """Return the id of the last entry of a shard that was written."""

    def write(self, shard: int, records: Sequence[bytes], *, last: str) -> None:
        """Write records of one shard, of which the last has this id."""

    def save(self) -> None:
        """Make all that was written final."""


class ConsumedOutput:
    """Standard output as a target: final as soon as it is written."""

    reader = f"{socket.gethostname()}:-"
    settle_every_s = 0.0

    def __init__(self, output: StandardOutput) -> None:
        self._output = output
        self._last: dict[int, str] = {}

    def last(self, shard: int) -> str:
        """Return the id of the last entry of a shard that this process wrote."""
        return self._last.get(shard, START)

    def write(self, shard: int, records: Sequence[bytes], *, last: str) -> None:
        """Write records."""
        self._output.write(records)
        self._last[shard] = last

    def save(self) -> None:
        """Nothing is left to be done."""


class Consumer:
    """One reader of a group."""

    def __init__(self, services: Services, job_id: str, *, group: str, target: Target) -> None:
        self._services = services
        self._job_id = job_id
        self._name = group
        self._target = target
        self._shards = 0
        self._group: ResultGroup | None = None
        self._written: dict[int, list[str]] = {}
        """Shard -> ids that are written and not acknowledged yet."""
        self._settled = 0
        """Records when they were last made final."""
        self._settled_at_s = time.monotonic()
        self.records = 0
        """Written by this process."""
        self.missed = 0
        """Trimmed before the group began."""

    async def run(self, *, follow: bool) -> None:
        """Take what there is; with ``follow`` what comes, until the job is over.

        Raises:
            NotFoundError: there is no such job (any more).
            ServiceUnavailable: a service did not answer; with ``follow`` it is waited for.
        """
        is_recovered = False
        while True:
            try:
                # First: what is read after it is all there will be.
                over = await is_over(self._services, self._job_id)
                group = await self._enrolled()
                if group is not None:
                    if not is_recovered:
                        await self._recover(group)
                        is_recovered = True
                    is_last = over or not follow
                    await self._round(group, is_last=is_last)
            except ServiceUnavailable as error:
                if not follow:
                    raise
                is_recovered = False  # a reply that was lost may have given us records
                await wait_for_service(error)
                continue
            if over or not follow:
                return
            await asyncio.sleep(POLL_S)

    async def held_by_others(self) -> dict[str, int]:
        """Return how many records of the group other readers have not acknowledged."""
        return {} if self._group is None else await self._group.held_by_others()

    async def _enrolled(self) -> ResultGroup | None:
        """Return the group, once it is known on every shard."""
        if self._group is not None:
            return self._group
        stored = await stored_job(self._services, self._job_id)
        self._shards = stored.job.spec.shards
        group = ResultGroup(
            self._services.client,
            cluster=self._services.cluster,
            job=JobId(stored.job.id),
            shards=self._shards,
            group=self._name,
            reader=self._target.reader,
        )
        missed = await group.enrol()
        if missed is None:
            return None
        self.missed = missed
        self._group = group
        return group

    async def _recover(self, group: ResultGroup) -> None:
        """Write what this reader was given and has not written; acknowledge what it has."""
        for shard in range(self._shards):
            after, written = START, _number(self._target.last(shard))
            while True:
                entries = await group.pending(shard, after=after, count=PAGE)
                if not entries:
                    break
                after = entries[-1].entry
                self._write(shard, [one for one in entries if _number(one.entry) > written])
                known = [one.entry for one in entries if _number(one.entry) <= written]
                self._written.setdefault(shard, []).extend(known)
        await self._settle(group)

    async def _round(self, group: ResultGroup, *, is_last: bool) -> None:
        for shard in range(self._shards):
            while True:
                entries = await group.new(shard, count=PAGE)
                self._write(shard, entries)
                if self.records - self._settled >= _SETTLE_EVERY:
                    await self._settle(group)
                if len(entries) < PAGE:
                    break
        if is_last or time.monotonic() - self._settled_at_s >= self._target.settle_every_s:
            await self._settle(group)

    def _write(self, shard: int, entries: Sequence[Given]) -> None:
        if not entries:
            return
        records = [one.record for one in entries if one.record is not None]
        self._target.write(shard, records, last=entries[-1].entry)
        self._written.setdefault(shard, []).extend(one.entry for one in entries)
        self.records += len(records)

    async def _settle(self, group: ResultGroup) -> None:
        """Make final what was written, then acknowledge it, then trim behind every group."""
        self._settled, self._settled_at_s = self.records, time.monotonic()
        if not self._written:
            return
        self._target.save()
        for shard in list(self._written):
            await group.acknowledge(shard, self._written[shard])
            del self._written[shard]
            await group.trim(shard)


def _number(entry: str) -> tuple[int, int]:
    """Return a stream id as what it is compared by."""
    ms, _, sequence = entry.partition("-")
    return int(ms), int(sequence)
