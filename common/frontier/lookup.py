"""Where one URL is in the frontier of a job: for people who ask, never for the crawl.

Everything is read in bounded steps, without a lock on anything: a URL that moves while it is looked
for is looked for again. Queues are read from their ends, since what is taken from the front then
shifts nothing. Nothing here changes anything, not even the estimates.

Not promised: an answer about one moment. A crawl goes on while it is asked.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from common.frontier import items
from common.frontier.client import FrontierClient
from common.frontier.items import Item
from common.frontier.keys import TaskKeys
from common.frontier.offers import shard_of_url
from common.frontier.owner import HOLD_MS
from common.frontier.replies import other_layout
from common.frontier.scope import ScopeSet
from common.frontier.scripts import LAYOUT_VERSION
from common.frontier.seen import SeenLayout, block_span, fingerprint, holds
from common.frontier.visits import Known, decode_known, mark, parse
from common.model.ids import JobId, Task
from common.model.job import JobSpec
from common.model.records import ResultRecord
from common.web import scope
from common.web.url import host_key, path_of

_STEP: Final = 500
_PASSES: Final = 3
"""A URL that moves against the order of the search may be missed by one pass."""


class Queued(NamedTuple):
    """It waits in its host's queue."""

    item: Item
    before: int
    """URLs of its host that come first, about."""
    ready_at_ms: int | None
    """When its host's next request may start (Unix time); None while one is under way."""
    is_blocked: bool
    """Its host is, by ``job host --block``."""


class Delayed(NamedTuple):
    """It waits for another try."""

    item: Item
    until_ms: int


class InFlight(NamedTuple):
    """It was taken to be fetched."""

    item: Item
    claim: int
    token: int
    since_ms: int | None


class Ended(NamedTuple):
    """It has a record."""

    record: ResultRecord


class NextVisit(NamedTuple):
    """It is visited again."""

    at_ms: int
    known: Known
    """What its visits have found."""


Place = Queued | Delayed | InFlight | Ended


class Lookup:
    """Looks for URLs of one job."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId, spec: JobSpec) -> None:
        self._client = client
        self._cluster = cluster
        self._job = job
        self._spec = spec
        self._scope = ScopeSet(client, cluster=cluster, job=job)

    def shard(self, url: str) -> int:
        """Return the shard of a canonical URL."""
        return shard_of_url(url, self._spec)

    async def is_in_scope(self, url: str) -> bool:
        """Tell whether a link to the URL would be followed, as far as the scope goes."""
        keys = scope.scope_keys(url, self._spec.scope)
        return not keys or any(await self._scope.contains(keys))

    async def is_staged(self, url: str) -> bool:
        """Tell whether the URL is a seed that was not offered yet."""
        key, cursor = self._keys_of_shard(0).staged, b"0"
        wanted = msgspec.msgpack.encode(url)
        while True:
            ((cursor, flat),) = await self._client.commands([("HSCAN", key, cursor, "COUNT", 10)])
            if any(wanted in chunk for chunk in flat[1::2]):
                return True
            if int(cursor) == 0:
                return False

    async def is_seen(self, url: str) -> bool:
        """Tell whether the URL was ever admitted; in mode ``bloom`` at its rate of errors.

        Raises:
            ScriptBug: the job has another layout, in which it may lie anywhere.
        """
        keys = self._keys(url)
        layout = SeenLayout(keys, mode=self._spec.seen, rate=self._spec.seen_rate)
        seen = fingerprint(url, layout.mode)
        ((version, layers),) = await self._client.commands(
            [("HMGET", keys.meta, "version", "layers")]
        )
        if version not in (None, LAYOUT_VERSION.encode()):
            raise other_layout(version, "looking for a URL")
        buckets = layout.buckets(seen, int(layers or 0))
        if layout.mode == "exact":
            asked = [("SISMEMBER", bucket, seen.fingerprint) for bucket in buckets]
            return any(await self._client.commands(asked))
        span = block_span(seen)
        blocks = await self._client.commands([("GETRANGE", key, *span) for key in buckets])
        return any(holds(raw, seen) for raw in blocks)

    async def sitemap(self, url: str) -> dict[str, Any] | None:
        """Return what became of a URL as a sitemap, if it was read as one."""
        (raw,) = await self._client.commands([("HGET", self._keys(url).sitemaps, url)])
        found: dict[str, Any] | None = None if raw is None else msgspec.json.decode(raw)
        return found

    async def next_visit(self, url: str) -> NextVisit | None:
        """Return when a page that has ended is visited again; None where it is not."""
        keys, one = self._keys(url), mark(url)
        due, value = await self._client.commands(
            [("ZSCORE", keys.due, one), ("HGET", keys.visited, one)]
        )
        visited = None if value is None else parse(value)
        if due is None or visited is None or not visited.item:
            return None
        at_ms = int(float(due)) - await self._skew_ms(keys)
        return NextVisit(at_ms, decode_known(items.decode(visited.host, visited.item).known))

    async def find(self, url: str) -> Place | None:
        """Return where the URL is; None where only the seen-set may know it."""
        for _ in range(_PASSES):
            # In the order in which a URL moves.
            place = (
                await self._queued(url)
                or await self._delayed(url)
                or await self._in_flight(url)
                or await self._ended(url)
            )
            if place is not None:
                return place
        return None

    async def _queued(self, url: str) -> Queued | None:
        keys, host, path = self._keys(url), host_key(url), path_of(url).encode()
        queue, last = keys.queue(host), -1
        while True:
            (raws,) = await self._client.commands([("LRANGE", queue, last - _STEP + 1, last)])
            for back, raw in enumerate(reversed(raws)):
                if path in raw and (item := items.decode(host, raw)).identity == url:
                    length, ready, skew, blocked = await self._client.commands(
                        [
                            ("LLEN", queue),
                            ("ZSCORE", keys.ready, host),
                            ("HGET", keys.meta, "skew"),
                            ("SISMEMBER", keys.blocked, host),
                        ]
                    )
                    ready_ms = None if ready is None else int(float(ready)) - int(skew or 0)
                    before = max(0, length + last - back)
                    return Queued(item, before, ready_ms, bool(blocked))
            if len(raws) < _STEP:
                return None
            last -= _STEP

    async def _delayed(self, url: str) -> Delayed | None:
        keys, host = self._keys(url), host_key(url)
        begin, path, cursor = host.encode() + b"\n", path_of(url).encode(), b"0"
        while True:
            ((cursor, flat),) = await self._client.commands(
                [("ZSCAN", keys.delayed, cursor, "COUNT", _STEP)]
            )
            for member, score in zip(flat[::2], flat[1::2], strict=True):
                if not member.startswith(begin) or path not in member:
                    continue
                item = items.decode(host, member[len(begin) :])
                if item.identity == url:
                    return Delayed(item, int(float(score)) - await self._skew_ms(keys))
            if int(cursor) == 0:
                return None

    async def _in_flight(self, url: str) -> InFlight | None:
        keys, host = self._keys(url), host_key(url)
        path, cursor = path_of(url).encode(), b"0"
        while True:
            ((cursor, flat),) = await self._client.commands(
                [("HSCAN", keys.in_flight, cursor, "COUNT", _STEP)]
            )
            for claim, entry in zip(flat[::2], flat[1::2], strict=True):
                if path not in entry:
                    continue
                token, at, raw = entry.split(b"\n", 2)
                if at.decode() == host and (item := items.decode(host, raw)).identity == url:
                    since = await self._claimed_at_ms(keys, int(claim))
                    return InFlight(item, int(claim), int(token), since)
            if int(cursor) == 0:
                return None

    async def _claimed_at_ms(self, keys: TaskKeys, claim: int) -> int | None:
        """Return when a claim was made: its slot ends a known time later."""
        (over,) = await self._client.commands([("ZSCORE", keys.slots, claim)])
        if over is None:
            return None
        held_ms = HOLD_MS + int(self._spec.timeout * 1000)
        return int(float(over)) - held_ms - await self._skew_ms(keys)

    async def _ended(self, url: str) -> Ended | None:
        key, before = self._keys(url).results, "+"
        wanted = msgspec.json.encode(url)
        while True:
            (entries,) = await self._client.commands(
                [("XREVRANGE", key, before, "-", "COUNT", _STEP)]
            )
            for _, (_, raw) in entries:
                if wanted in raw:
                    record = msgspec.json.decode(raw, type=ResultRecord)
                    if record.url == url:
                        return Ended(record)
            if len(entries) < _STEP:
                return None
            before = f"({entries[-1][0].decode()}"

    async def _skew_ms(self, keys: TaskKeys) -> int:
        (skew,) = await self._client.commands([("HGET", keys.meta, "skew")])
        return int(skew or 0)

    def _keys(self, url: str) -> TaskKeys:
        return self._keys_of_shard(self.shard(url))

    def _keys_of_shard(self, shard: int) -> TaskKeys:
        return TaskKeys(self._cluster, Task(self._job, shard))
