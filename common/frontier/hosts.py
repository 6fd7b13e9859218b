"""The hosts of a job: what waits for each, how it went, and settings for one of them.

Settings lie beside the host's queue and are read by the script that claims, so they hold for
whoever owns the shard: a blocked host is not claimed, and a delay set for a host takes the place of
the job's. What robots.txt asks for still wins where it is longer.

Not promised: a listing of one moment. It is read in bounded steps while the crawl goes on; of a
shard with more hosts than a step holds, one that is just asked may be missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Final, Literal, NamedTuple

from common.frontier.client import FrontierClient
from common.frontier.keys import TaskKeys
from common.frontier.offers import shard_of
from common.frontier.replies import Refusal, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, Call
from common.model.ids import HostKey, JobId, Revision, Task
from common.model.job import JobSpec

_STEP: Final = 500
_SHARDS_AT_ONCE: Final = 128


class HostView(NamedTuple):
    """A host that has something left to do, errors, or settings of its own."""

    host: HostKey
    shard: int | None
    """None where its URLs lie in all shards."""
    queued: int
    delayed: int
    in_flight: int
    ready_at_ms: int | None
    """When its next request may start (Unix time); None where nothing is queued or one runs."""
    delay_ms: int | None
    """Set for it; None = the job's."""
    is_blocked: bool
    errors: int
    """Its URLs that failed or died."""


class Turns(NamedTuple):
    """How many hosts of a job could be asked now."""

    due: int
    """With queued URLs, and their time has come."""
    waiting: int
    """With queued URLs, and their time is to come."""
    busy: int
    """With requests under way."""


class Hosts:
    """The hosts of one job."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId, spec: JobSpec) -> None:
        self._client = client
        self._per_host = spec.per_host
        self._is_spread = spec.shard_by == "url"
        self._keys = [TaskKeys(cluster, Task(job, shard)) for shard in range(spec.shards)]

    async def views(self) -> AsyncIterator[HostView]:
        """Yield every host that is known to the frontier now, once each."""
        if not self._is_spread:
            async for view in self._by_shard():
                yield view
            return
        known: dict[HostKey, HostView] = {}
        async for view in self._by_shard():
            other = known.get(view.host)
            known[view.host] = view._replace(shard=None) if other is None else _sum(other, view)
        for view in known.values():
            yield view

    async def _by_shard(self) -> AsyncIterator[HostView]:
        for shard, keys in enumerate(self._keys):
            # A host goes from one of the first three to another as it is asked: read one after the
            # other, it could be missed in each of them.
            ready, busy, delaying, claims, errors, delays, blocking = await self._scanned(
                ("ZSCAN", keys.ready),
                ("HSCAN", keys.busy),
                ("ZSCAN", keys.delayed),
                ("HSCAN", keys.in_flight),
                ("HSCAN", keys.errors),
                ("HSCAN", keys.delays),
                ("SSCAN", keys.blocked),
            )
            blocked = blocking.keys()
            delayed = Counter(one.partition(b"\n")[0] for one in delaying)
            flying = Counter(one.split(b"\n", 2)[1] for one in claims.values())
            (skew,) = await self._client.commands([("HGET", keys.meta, "skew")])
            known = sorted({*ready, *busy, *delayed, *flying, *errors, *delays, *blocked})
            async for name, queued in self._queued(keys, known):
                at = ready.get(name)
                is_blocked = name in blocked
                has_turn = queued and at is not None and not is_blocked
                yield HostView(
                    host=HostKey(name.decode()),
                    shard=shard,
                    queued=queued,
                    delayed=delayed[name],
                    in_flight=flying[name],
                    ready_at_ms=int(float(at)) - int(skew or 0) if has_turn and at else None,
                    delay_ms=int(delays[name]) if name in delays else None,
                    is_blocked=is_blocked,
                    errors=int(errors.get(name, 0)),
                )

    async def turns(self) -> Turns:
        """Return how many hosts could be asked now, and how many have to wait for their turn."""
        due = ready = busy = 0
        for start in range(0, len(self._keys), _SHARDS_AT_ONCE):
            some = self._keys[start : start + _SHARDS_AT_ONCE]
            skews = await self._client.commands([("HGET", keys.meta, "skew") for keys in some])
            times = await self._client.times_ms([keys.meta for keys in some])
            commands: list[tuple[str | bytes | int | float, ...]] = []
            for keys, skew, now_ms in zip(some, skews, times, strict=True):
                commands += [
                    ("ZCOUNT", keys.ready, "-inf", now_ms + int(skew or 0)),
                    ("ZCARD", keys.ready),
                    ("HLEN", keys.busy),
                ]
            counts = await self._client.commands(commands)
            due += sum(counts[0::3])
            ready += sum(counts[1::3])
            busy += sum(counts[2::3])
        return Turns(due, max(0, ready - due), busy)

    async def change(
        self, host: HostKey, to: Literal["block", "unblock"] | int, *, revision: Revision
    ) -> Refusal | None:
        """Change how a host is treated, whether it is known yet or not.

        Where its URLs lie in all shards, the change is made in one after the other; one that is
        refused half-way is to be repeated, as any is.

        Args:
            host: which.
            to: block or unblock it, or its delay in ms.
            revision: the job's, as it was read; refused where a newer one was seen.

        Raises:
            FrontierUnavailable: no answer; repeating is harmless.
        """
        homes = self._keys if self._is_spread else [self._keys[shard_of(host, len(self._keys))]]
        args: list[str | bytes | int] = [LAYOUT_VERSION, 0, revision, self._per_host, host, to]
        calls = [
            Call(
                "host_set",
                [
                    keys.meta, keys.ready, keys.pace, keys.busy, keys.blocked, keys.delays,
                    keys.queue(host),
                ],
                args,
            )
            for keys in homes
        ]  # fmt: skip
        for start in range(0, len(calls), _SHARDS_AT_ONCE):
            for reply in await self._client.call(calls[start : start + _SHARDS_AT_ONCE]):
                if refusal := refusal_of(reply, "host_set"):
                    return refusal
        return None

    async def _queued(
        self, keys: TaskKeys, hosts: Iterable[bytes]
    ) -> AsyncIterator[tuple[bytes, int]]:
        left = list(hosts)
        while left:
            batch, left = left[:_STEP], left[_STEP:]
            lengths = await self._client.commands(
                [("LLEN", keys.queue(HostKey(host.decode()))) for host in batch]
            )
            for host, length in zip(batch, lengths, strict=True):
                yield host, length

    async def _scanned(self, *scans: tuple[str, str]) -> list[dict[bytes, bytes]]:
        """Return all that collections hold, read together step by step.

        Args:
            scans: command and key.

        Returns:
            A dict each; of a set with its members as keys.
        """
        found: list[dict[bytes, bytes]] = [{} for _ in scans]
        cursors: dict[int, bytes | int] = dict.fromkeys(range(len(scans)), 0)
        while cursors:
            replies = await self._client.commands(
                [(*scans[at], cursor, "COUNT", _STEP) for at, cursor in cursors.items()]
            )
            for at, (cursor, flat) in zip(list(cursors), replies, strict=True):
                step = 1 if scans[at][0] == "SSCAN" else 2
                found[at].update(zip(flat[::step], flat[step - 1 :: step], strict=True))
                cursors[at] = cursor
                if int(cursor) == 0:
                    del cursors[at]
        return found


def _sum(one: HostView, other: HostView) -> HostView:
    """Return what two shards know of a host, taken together."""
    times = [at for at in (one.ready_at_ms, other.ready_at_ms) if at is not None]
    return HostView(
        host=one.host,
        shard=None,
        queued=one.queued + other.queued,
        delayed=one.delayed + other.delayed,
        in_flight=one.in_flight + other.in_flight,
        ready_at_ms=min(times, default=None),
        delay_ms=one.delay_ms if other.delay_ms is None else other.delay_ms,
        is_blocked=one.is_blocked or other.is_blocked,
        errors=one.errors + other.errors,
    )
