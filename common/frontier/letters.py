"""Dead letters: URLs given up, each kept with its reason so that it can be looked at and put back.

A letter is written with the commit that ends its URL, and says by itself what happened, since the
result record may have been consumed and trimmed by then. The server puts the id of that record in
front of it (``commit.lua``): a letter put back takes its record with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

import msgspec

from common.frontier import items
from common.frontier.client import FrontierClient
from common.frontier.items import Item
from common.frontier.keys import HostQueues, TaskKeys
from common.frontier.replies import Refusal, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, RUN, Call
from common.frontier.visits import mark
from common.model.ids import HostKey, JobId, Revision, Task
from common.model.job import JobSpec
from common.model.records import ErrorInfo

BATCH: Final = 250
"""Letters read or put back in one step."""


class _Ending(msgspec.Struct, frozen=True):
    """What a letter keeps of the result record."""

    error: ErrorInfo | None = None
    status: int | None = None
    attempt: int = 1
    fetched_at: str | None = None


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    item: bytes
    ending: _Ending


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode
_decode_record = msgspec.json.Decoder(_Ending).decode


class DeadLetter(NamedTuple):
    """A URL that was given up."""

    field: bytes
    """Its name among the shard's letters."""
    item: Item
    """What it was about; its attempts and owners begin anew."""
    code: str | None
    """Error code, see ``common.web.retry``."""
    message: str | None
    status: int | None
    attempts: int
    dead_at: str | None
    """RFC 3339, by the worker's clock."""


def encode_letter(item: bytes, record: bytes) -> bytes:
    """Return the letter for an item whose last try ended with this result record (JSON)."""
    return _encode(_Stored(item, _decode_record(record)))


class DeadLetters:
    """The dead letters of one job."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId, spec: JobSpec) -> None:
        self._client = client
        self._per_host = spec.per_host
        self._recrawls = spec.recrawl is not None
        self._keys = [TaskKeys(cluster, Task(job, shard)) for shard in range(spec.shards)]

    async def pages(self) -> AsyncIterator[tuple[int, list[DeadLetter]]]:
        """Yield every letter with its shard, in bounded steps.

        Letters that come or go meanwhile may be missed, or seen though they are gone.
        """
        for shard, keys in enumerate(self._keys):
            cursor: bytes | int = 0
            while True:
                ((cursor, flat),) = await self._client.commands(
                    [("HSCAN", keys.dead, cursor, "COUNT", BATCH)]
                )
                found = [_letter(flat[at], flat[at + 1]) for at in range(0, len(flat), 2)]
                for start in range(0, len(found), BATCH):
                    yield shard, found[start : start + BATCH]
                if int(cursor) == 0:
                    break

    async def put_back(
        self, shard: int, letters: Sequence[DeadLetter], *, revision: Revision
    ) -> int | Refusal:
        """Queue letters again, and delete their records.

        Args:
            shard: where they are.
            letters: at most ``BATCH``.
            revision: the job's, as it was read; refused where a newer one was seen.

        Returns:
            How many were put back; the others had been before.

        Raises:
            FrontierUnavailable: no answer; repeating is harmless.
        """
        keys = self._keys[shard]
        queues = HostQueues(keys)
        args: list[str | bytes | int] = [LAYOUT_VERSION, RUN, 0, revision, self._per_host]
        for letter in letters:
            fresh = letter.item._replace(attempt=1, owners=0)
            args += (letter.field, queues.index(fresh.host), items.encode(fresh))
            args.append(mark(fresh.url) if self._recrawls else b"")
        names = [
            keys.meta, keys.ready, keys.pace, keys.busy, keys.dead, keys.results, keys.errors,
            keys.due, keys.visited,
        ]  # fmt: skip
        (reply,) = await self._client.call([Call("dead_retry", names + queues.names, args)])
        return refusal_of(reply, "dead_retry") or int(reply[1])


def _letter(field: bytes, value: bytes) -> DeadLetter:
    host = HostKey(field.partition(b"\n")[0].decode())
    stored = _decode(value.partition(b"\n")[2])
    ending = stored.ending
    return DeadLetter(
        field=field,
        item=items.decode(host, stored.item),
        code=ending.error.code if ending.error else None,
        message=ending.error.message if ending.error else None,
        status=ending.status,
        attempts=ending.attempt,
        dead_at=ending.fetched_at,
    )
