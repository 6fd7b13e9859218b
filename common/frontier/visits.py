"""Pages that are visited again: what is known of each, and when its next visit is due.

A page of a job with ``--recrawl`` that has ended lies in two keys of its shard, under the *mark* of
its URL (8 bytes, the fingerprint): ``due`` says when it is to be visited, ``visited`` where its
record is and what is to be queued then. ``commit.lua`` puts it in, ``recall.lua`` moves what is due
to the queues. While it is on its way its record stays, and ``visited`` says where; the commit of
the visit puts the new record in place of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from common.frontier.client import FrontierClient
from common.frontier.keys import HostQueues, TaskKeys
from common.frontier.replies import Refusal, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, RUN, Call
from common.frontier.seen import fingerprint
from common.model.ids import HostKey, JobId, Revision, Task, Token
from common.model.job import JobSpec
from common.model.records import WarcRef

BATCH: Final = 250
"""Pages a call; keeps each under ten milliseconds."""
_MARK: Final = Struct("<q")


class Page(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What records say of a page whose server was asked only whether it has changed."""

    content_type: str | None
    encoding: str | None
    bytes: int
    sha256: str | None
    title: str | None
    robots: tuple[str, ...]
    canonical: str | None
    simhash: str | None
    outlinks: int
    warc: WarcRef | None
    """Where its body is."""
    recorded_at: str | None
    """``WARC-Date`` of the response there."""


class Known(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the visits of a page have found so far."""

    visits: int
    """That have ended."""
    interval_s: float
    """From the last one to the next."""
    gone: int = 0
    """Visits in a row that found it gone, up to the last that was answered."""
    answer: bytes = b""
    """By what the last answer is told from another; empty = there was none yet."""
    etag: str | None = None
    """To be sent back, as it came with the last answer that gave a page; likewise ``modified``."""
    modified: str | None = None
    page: Page | None = None
    """That page; None where nothing can be sent back."""
    refused: dict[int, int] = {}
    """CRC-32 of a rule -> the most links it has refused on one visit: so many are counted."""


encode_known: Final = msgspec.msgpack.Encoder().encode
decode_known: Final = msgspec.msgpack.Decoder(Known).decode


def mark(url: str) -> bytes:
    """Return what a page is known by in its shard."""
    return _MARK.pack(fingerprint(url, "exact").fingerprint)


def next_visit(url: str, *, after_ms: int, item: bytes) -> bytes:
    """Return what ``commit.lua`` is told of a page: what to queue when it is due.

    Args:
        url: canonical.
        after_ms: from the commit on; -1 = never again.
        item: the page's, with what is known of it.
    """
    return mark(url) + b"%d\n" % after_ms + item


class Recalled(NamedTuple):
    """Pages that were due are queued."""

    moved: int
    wait_ms: int
    """Until the next one is due; -1 = none is known."""
    is_held: bool = False
    """Whether some that are due were not queued: the shard takes nothing now."""


class Outdated(NamedTuple):
    """Nothing was done: the job's record is newer than the one this was decided on."""


class DueVisits:
    """The pages of a shard that wait for their next visit, as its owner sees them."""

    def __init__(
        self, client: FrontierClient, *, cluster: str, task: Task, spec: JobSpec, token: Token
    ) -> None:
        self._client = client
        self._keys = TaskKeys(cluster, task)
        self._per_host = spec.per_host
        self._token = token

    async def recall(self, *, run: str, revision: Revision) -> Recalled | Outdated | Refusal:
        """Queue up to ``BATCH`` pages that are due.

        Args:
            run: the server run the shard was adopted under.
            revision: of the job's record by which pages are to be visited again.

        Raises:
            FrontierUnavailable: no answer; repeating is harmless.
        """
        (clock_ms,) = await self._client.times_ms([self._keys.meta])
        listed, skew = await self._client.commands(
            [
                ("ZRANGE", self._keys.due, 0, BATCH, "WITHSCORES"),
                ("HGET", self._keys.meta, "skew"),
            ]
        )
        now_ms = clock_ms + int(skew or 0)
        waits = [
            (listed[at], int(float(listed[at + 1])) - now_ms) for at in range(0, len(listed), 2)
        ]
        marks = [one for one, wait_ms in waits if wait_ms <= 0][:BATCH]
        moved = await self._move(marks, run, revision) if marks else 0
        if not isinstance(moved, int):
            return moved
        left = [wait_ms for _, wait_ms in waits[len(marks) :]]
        return Recalled(moved, max(0, left[0]) if left else -1, moved < len(marks))

    async def _move(
        self, marks: list[bytes], run: str, revision: Revision
    ) -> int | Outdated | Refusal:
        keys, queues = self._keys, HostQueues(self._keys)
        (values,) = await self._client.commands([("HMGET", keys.visited, *marks)])
        args: list[str | bytes | int] = [LAYOUT_VERSION, RUN, self._token, revision, self._per_host]
        for one, value in zip(marks, values, strict=True):
            if value is not None:
                args += (one, queues.index(parse(value).host))
        names = [
            keys.meta, keys.ready, keys.pace, keys.busy, keys.due, keys.visited, keys.dead,
            keys.errors, *queues.names,
        ]  # fmt: skip
        (reply,) = await self._client.call([Call("recall", names, args, run)])
        if reply[0] == b"OUTDATED":
            return Outdated()
        return refusal_of(reply, "recall") or int(reply[1])


class Visited(NamedTuple):
    """What ``visited`` holds of a page."""

    outcome: str
    host: HostKey
    item: bytes
    """To be queued; empty while the page is on its way."""


def parse(value: bytes) -> Visited:
    """Return what a value of ``visited`` says; see ``commit.lua``."""
    _, outcome, _, host, item = value.split(b"\n", 4)
    return Visited(outcome.decode(), HostKey(host.decode()), item)


class Waiting(NamedTuple):
    """Pages of a job that wait for their next visit."""

    pages: int
    next_at_ms: int | None
    """When the first of them is due (Unix time)."""


async def waiting(
    client: FrontierClient, *, cluster: str, job: JobId, shards: Iterable[int]
) -> Waiting:
    """Return how many pages of a job wait for their next visit.

    Raises:
        FrontierUnavailable: no answer.
    """
    pages, first = 0, list[int]()
    for shard in shards:
        keys = TaskKeys(cluster, Task(job, shard))
        replies: list[Any] = await client.commands(
            [
                ("ZCARD", keys.due),
                ("ZRANGE", keys.due, 0, 0, "WITHSCORES"),
                ("HGET", keys.meta, "skew"),
            ]
        )
        pages += replies[0]
        first += [int(float(score)) - int(replies[2] or 0) for score in replies[1][1:2]]
    return Waiting(pages, min(first, default=None))
