"""A job whose results are written by the test, as owners of its shards would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from common.coord import StoredJob
from common.frontier import MasterFence, ShardState
from common.frontier.keys import TaskKeys
from common.model.ids import JobId, Task
from common.model.job import Job, JobSpec, JobState
from common.model.records import ErrorInfo, Outcome, ResultRecord, WarcRef
from common.runtime.clock import utc_now
from crawlctl.connect import Services

JOB = JobId("j")
SHARDS = 3

TITLES = (
    "plain", None, "", '=HYPERLINK("http://x","y")', "+1", "-1", "@SUM(A1)", "\t=1",
    'a "quoted", one', "two\r\nlines", "ünïcödé \N{GRINNING FACE}", "1e5", "esc\x1b[31m",
)  # fmt: skip


def record(number: int) -> ResultRecord:
    """Return the ``number``-th record; each kind of value comes up."""
    failed = number % 5 == 4
    return ResultRecord(
        url=f"http://h.example/{number}?a=1,2",
        final_url=f"http://h.example/{number}?a=1,2",
        status=None if failed else 200,
        outcome=Outcome.FAILED if failed else Outcome.FETCHED,
        depth=number % 4,
        referrer=None if number == 0 else "http://h.example/0",
        fetched_at="2026-11-30T08:15:30.123Z",
        title=TITLES[number % len(TITLES)],
        truncated=number % 2 == 1,
        worker="w",
        token=7,
        error=ErrorInfo(code="dns_not_found", message="no such host, sorry") if failed else None,
        warc=None if failed else WarcRef(file="x.warc.gz", offset=number, length=9),
    )


def urls(numbers: Sequence[int] | range) -> Counter[str]:
    """Return the URLs of these records, each once."""
    return Counter(record(number).url for number in numbers)


class WrittenJob:
    """A running job with its shards; records go in by number, spread over the shards."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.spec = JobSpec(shards=SHARDS)
        self.count = 0

    async def create(self) -> WrittenJob:
        job = Job(id=JOB, spec=self.spec, state=JobState.RUNNING, created_at=utc_now())
        self.stored = await self._services.coord.jobs.create(job)
        assert isinstance(self.stored, StoredJob)
        frontier = self._services.frontier(job)
        await frontier.create(fence=MasterFence(1, self.stored.revision), state=ShardState.OPEN)
        return self

    def keys(self, shard: int) -> TaskKeys:
        return TaskKeys(self._services.cluster, Task(JOB, shard))

    async def add(self, count: int) -> None:
        numbers = range(self.count, self.count + count)
        await self._services.client.commands(
            [
                (
                    "XADD",
                    self.keys(number % SHARDS).results,
                    "*",
                    "r",
                    msgspec.json.encode(record(number)),
                )
                for number in numbers
            ]
        )
        self.count += count

    async def end(self, state: JobState = JobState.FINISHED) -> None:
        ended = msgspec.structs.replace(self.stored.job, state=state)
        replaced = await self._services.coord.jobs.replace(ended, expected=self.stored.revision)
        assert isinstance(replaced, StoredJob)
        self.stored = replaced

    async def lengths(self) -> list[int]:
        """Return how many records stand in each shard."""
        return await self._services.client.commands(
            [("XLEN", self.keys(shard).results) for shard in range(SHARDS)]
        )
