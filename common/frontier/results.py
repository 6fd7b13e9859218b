"""Results read as a consumer group: each record to one reader of the group, trimmed behind all.

What a reader was given stays *pending* with it until it acknowledges, so a reader that died gets it
again when it comes back under its name. Ids given to one reader only grow: what is pending at or
below the last id it has stored is stored, what is above is not.

Not promised: that two readers of one name at a time each get their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from common.frontier.client import FrontierClient
from common.frontier.keys import TaskKeys
from common.frontier.replies import Refusal, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, Call
from common.model.ids import JobId, Task

_NEW = ">"


class Given(NamedTuple):
    """An entry given to this reader."""

    entry: str
    """Its id in the shard's stream."""
    record: bytes | None
    """JSON; None where it is gone from the stream."""


class ResultGroup:
    """One reader of a consumer group, over all shards of a job."""

    def __init__(
        self,
        client: FrontierClient,
        *,
        cluster: str,
        job: JobId,
        shards: int,
        group: str,
        reader: str,
    ) -> None:
        self._client = client
        self._keys = [TaskKeys(cluster, Task(job, shard)) for shard in range(shards)]
        self._group = group
        self._reader = reader

    async def enrol(self) -> int | None:
        """Make the group known on every shard, so that nothing is trimmed before it was read.

        Returns:
            How many results were trimmed on shards where the group is new; None while the job has
            no shards: enrol again later.
        """
        missed = 0
        for keys in self._keys:
            call = Call("enrol", [keys.meta, keys.results], [LAYOUT_VERSION, self._group])
            (reply,) = await self._client.call([call])
            if refusal_of(reply, "enrol") is Refusal.MISSING:
                return None
            _, is_new, trimmed = reply
            missed += trimmed if is_new else 0
        return missed

    async def new(self, shard: int, *, count: int) -> list[Given]:
        """Take up to ``count`` records that no reader of the group was given yet.

        They are durable: a crash of the server does not bring the same URL back under another id.
        What was read of a server that was restarted meanwhile is not given out: where it survived,
        it is pending.
        """
        key = self._keys[shard].results
        run = await self._client.current_run(key)
        given = await self._read(shard, _NEW, count)
        if given and await self._client.wait_durable([key]) != [run]:
            return []
        return given

    async def pending(self, shard: int, *, after: str, count: int) -> list[Given]:
        """Return up to ``count`` records that this reader was given and has not acknowledged."""
        return await self._read(shard, after, count)

    async def _read(self, shard: int, after: str, count: int) -> list[Given]:
        key = self._keys[shard].results
        reading = ("GROUP", self._group, self._reader, "COUNT", count, "STREAMS", key, after)
        (reply,) = await self._client.commands([("XREADGROUP", *reading)])
        if not reply:
            return []
        ((_, entries),) = reply
        return [Given(entry.decode(), fields[1] if fields else None) for entry, fields in entries]

    async def acknowledge(self, shard: int, entries: Sequence[str]) -> None:
        """Say that these records are kept for good elsewhere; again changes nothing."""
        key = self._keys[shard].results
        await self._client.commands([("XACK", key, self._group, *entries)])

    async def trim(self, shard: int) -> int:
        """Drop what every group has acknowledged; return how many records that was."""
        keys = self._keys[shard]
        (reply,) = await self._client.call(
            [Call("trim", [keys.meta, keys.results], [LAYOUT_VERSION])]
        )
        return 0 if refusal_of(reply, "trim") else int(reply[1])

    async def held_by_others(self) -> Counter[str]:
        """Return how many records each other reader was given and has not acknowledged."""
        replies: list[Any] = await self._client.commands(
            [("XPENDING", keys.results, self._group) for keys in self._keys]
        )
        held: Counter[str] = Counter()
        for _, _, _, readers in replies:
            for reader, count in readers or ():
                if reader.decode() != self._reader:
                    held[reader.decode()] += int(count)
        return held
