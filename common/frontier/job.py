"""All shards of one job, as the master and the command line see them.

Scripts of the master carry its term and the job's revision and are refused where a shard has seen a
newer one (design rule P3), so that a decision made on an older state changes nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, assert_never

import msgspec

from common.frontier.client import FrontierClient
from common.frontier.items import Item
from common.frontier.keys import TaskKeys
from common.frontier.offers import Offers
from common.frontier.replies import Refusal, ShardState, refusal_of
from common.frontier.scope import ScopeSet, trusted_key
from common.frontier.scripts import LAYOUT_VERSION, RUN, Call
from common.frontier.shard_stats import ShardStats, parse_stats
from common.model.ids import JobId, Task
from common.model.job import JobSpec, JobState
from common.web import scope, url

UNLIMITED = 2**53 - 1
"""The grant of a shard without page budget: the largest integer Lua holds exactly."""
PIPELINE = 128
"""Shards a round trip."""

_encode_chunk = msgspec.msgpack.Encoder().encode
_decode_chunk = msgspec.msgpack.Decoder(list[str]).decode


def shard_state(state: JobState) -> ShardState:
    """Return what the shards of a job in ``state`` are to accept."""
    match state:
        case JobState.RUNNING:
            return ShardState.OPEN
        case JobState.PENDING | JobState.PAUSED:
            return ShardState.PAUSED
        case JobState.CANCELLED:
            return ShardState.CANCELLED
        case JobState.FINISHED | JobState.FAILED | JobState.DAMAGED:
            return ShardState.CLOSED
        case _:
            assert_never(state)


class MasterFence(NamedTuple):
    """What a master's script carries; refused when lower than what the shard has seen."""

    term: int
    """0 for the command line: then the revision alone is compared."""
    revision: int


class JobFrontier:
    """The frontier of a job."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId, spec: JobSpec) -> None:
        self._client = client
        self._spec = spec
        self._keys = [TaskKeys(cluster, Task(job, shard)) for shard in range(spec.shards)]
        self._scope = ScopeSet(client, cluster=cluster, job=job)
        self._offers = Offers(client, cluster=cluster, job=job, spec=spec)
        self._metas = [key.meta for key in self._keys]
        self._looked_runs = [""] * spec.shards
        """Server runs that answered when the shards were looked at last."""
        self._is_look_kept = True
        """What was seen then, if anything was, is durable on every server."""
        self._offered_runs: dict[int, str] = {}
        """Shard -> server run under which seeds were offered to it last."""

    async def create(self, *, fence: MasterFence, state: ShardState) -> list[Refusal | None]:
        """Bring the shards of a job that has never started into being; idempotent.

        When this returns they are durable: the job may be called running.
        """
        grant = UNLIMITED if self._spec.max_pages is None else 0
        args: list[str | bytes | int] = [LAYOUT_VERSION, RUN, *fence, state.value, grant]
        made = await self._on_all(Call("create", [key.meta], args) for key in self._keys)
        await self._client.wait_durable(self._metas)
        return made

    async def apply(self, state: ShardState, *, fence: MasterFence) -> list[Refusal | None]:
        """Set the state of every shard, which also undoes a seal, and raise the fence there.

        Refused with RUN where it was decided on counts that a server may still lose.
        """
        if state is ShardState.SPENT and not await self._keeps_look():
            return [Refusal.RUN] * len(self._keys)
        args: list[str | bytes | int] = [LAYOUT_VERSION, *fence, state.value]
        return await self._on_all(Call("apply", [key.meta], args) for key in self._keys)

    async def stats(self) -> list[ShardStats]:
        """Return one atomic look at each shard."""
        self._looked_runs = await self._client.current_runs(self._metas)
        self._is_look_kept = False
        looks = await self._look(range(len(self._keys)))
        missing = [one.shard for one in looks if not one.exists]
        if missing:  # surely, and not on their way to another node?
            await self._client.check_whole([self._metas[shard] for shard in missing])
            for one in await self._look(missing):
                looks[one.shard] = one
        return looks

    async def _look(self, shards: Iterable[int]) -> list[ShardStats]:
        numbers = list(shards)
        keys = [self._keys[shard] for shard in numbers]
        replies = await self._run(
            [Call("stats", [key.meta, key.staged, key.hll], []) for key in keys]
        )
        return [parse_stats(shard, *one) for shard, one in zip(numbers, replies, strict=True)]

    async def _keeps_look(self) -> bool:
        """Wait until all that was seen is durable; False = it may be lost: look again.

        On one server what follows from it stands later in the same log, and needs no waiting.
        """
        if self._client.is_cluster and not self._is_look_kept:
            self._is_look_kept = await self._client.wait_durable(self._metas) == self._looked_runs
            return self._is_look_kept
        return True

    async def seal(self, stats: Sequence[ShardStats], *, fence: MasterFence) -> bool:
        """Close every shard to offers, if all are empty and as they were seen in ``stats``.

        Returns:
            True when all are sealed at once, on the same server runs: the job may be finished.
            False: some may be sealed; :meth:`apply` undoes that.
        """
        for look in stats:
            keys = self._keys[look.shard]
            seen = (look.run, look.counters["discovered"], look.refilled)
            call = Call("seal", [keys.meta, keys.staged], [LAYOUT_VERSION, *fence, *seen])
            (reply,) = await self._client.call([call])
            if reply[0] == b"MOVED" or refusal_of(reply, "seal"):
                return False
        # What was committed and sealed is durable before anybody writes "finished" elsewhere, and
        # the look that follows proves that no crash came before that.
        await self._client.wait_durable(self._metas)
        again = await self.stats()
        runs = await self._client.current_runs(self._metas)
        return all(
            look.state is ShardState.SEALED
            and look.run == before.run == run
            and (look.counters, look.refilled) == (before.counters, before.refilled)
            for look, before, run in zip(again, stats, runs, strict=True)
        )

    async def grant(
        self, shard: int, amount: int, *, fence: MasterFence, seen: int | None = None
    ) -> int | Refusal:
        """Move the page budget of a shard; return what was really changed (pages).

        Args:
            shard: whose budget.
            amount: pages; a negative one takes back what is unused.
            fence: of the master.
            seen: the grant this was decided on; where it has changed since, nothing is moved.
        """
        if amount > 0 and not await self._keeps_look():
            return 0
        guard = "" if seen is None else seen
        args: list[str | bytes | int] = [LAYOUT_VERSION, *fence, amount, guard]
        call = Call("grant", [self._metas[shard]], args, self._looked_runs[shard])
        (reply,) = await self._client.call([call])
        refusal = refusal_of(reply, "grant")
        if refusal is Refusal.RUN:  # what was taken back before may be back: look again
            return 0
        return refusal or int(reply[1])

    async def stage(self, first: int, *chunks: Sequence[str]) -> None:
        """Park chunks of canonical seed URLs, numbered from ``first``, in one step.

        A number that is there already is replaced.
        """
        pairs: list[int | bytes] = []
        for number, urls in enumerate(chunks, first):
            pairs += (number, _encode_chunk(list(urls)))
        await self._client.commands([("HSET", self._keys[0].staged, *pairs)])

    async def staging_run(self) -> str:
        """Return the run of the server that chunks are parked on now."""
        return await self._client.current_run(self._metas[0])

    async def keep_staged(self) -> str:
        """Return once what was parked is durable, with the server run that keeps it."""
        (run,) = await self._client.wait_durable([self._metas[0]])
        return run

    async def staged(self, limit: int = 1) -> list[tuple[int, list[str]]]:
        """Return up to ``limit`` staged chunks, with their numbers."""
        ((_, flat),) = await self._client.commands(
            [("HSCAN", self._keys[0].staged, 0, "COUNT", limit)]
        )
        pairs = [(int(flat[at]), flat[at + 1]) for at in range(0, len(flat), 2)]
        if pairs:
            return [(number, _decode_chunk(raw)) for number, raw in sorted(pairs)[:limit]]
        return await self._staged_by_keys(limit)

    async def _staged_by_keys(self, limit: int) -> list[tuple[int, list[str]]]:
        # HSCAN may return an empty page of a hash that is not empty.
        (names,) = await self._client.commands([("HKEYS", self._keys[0].staged)])
        numbers = sorted(map(int, names))[:limit]
        if not numbers:
            return []
        (raws,) = await self._client.commands([("HMGET", self._keys[0].staged, *numbers)])
        return [
            (number, _decode_chunk(raw))
            for number, raw in zip(numbers, raws, strict=True)
            if raw is not None
        ]

    async def offer_seeds(self, urls: Sequence[str]) -> Refusal | None:
        """Add the seeds' scope and offer them to their shards.

        Returns:
            None when all were taken. RUN, RETRY: a shard said wait; offer all of them again later.
            CLOSED, MISSING: the job is over, or a shard is gone; offer no more before the job was
            looked at again.
        """
        seeds = [Item(url.host_key(one), url.path_of(one), 0, None) for one in urls]
        by_shard = self._offers.by_shard(seeds)
        self._offered_runs = await self._runs_of({0, *by_shard})
        keys = {scope.seed_scope_key(one, self._spec.scope) for one in urls}
        await self._scope.add(key for key in keys if key is not None)
        if self._spec.header or self._spec.cookie or self._spec.plugin:  # one may prepare requests
            await self._scope.add(trusted_key(url.authority_of(one)) for one in urls)
        # Side by side: what arrives at a server together is synced to its disk together.
        answers = await asyncio.gather(
            *(self._offers.offer(shard, found) for shard, found in by_shard.items()),
            return_exceptions=True,
        )
        refusals: list[Refusal] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            if isinstance(answer, Refusal):
                refusals.append(answer)
        final = [one for one in refusals if one not in (Refusal.RUN, Refusal.RETRY)]
        return next(iter(final or refusals), None)

    async def unstage(self, *numbers: int, fence: MasterFence) -> Refusal | None:
        """Delete chunks whose URLs were all taken.

        Refused with RUN where another server run took the place of one that they were offered to:
        it may have lost them.
        """
        kept = await self._offers.kept(self._offered_runs)
        if len(kept) < len(self._offered_runs):
            return Refusal.RUN
        keys, run = self._keys[0], self._offered_runs.get(0, "")
        call = Call("unstage", [keys.meta, keys.staged], [LAYOUT_VERSION, *fence, *numbers], run)
        (reply,) = await self._client.call([call])
        return refusal_of(reply, "unstage")

    async def refused(self, kind: str = "") -> dict[str, int]:
        """Return how many links were refused so far by rules that begin so; most first."""
        found: Counter[str] = Counter()
        for start in range(0, len(self._keys), PIPELINE):
            asked = [("HGETALL", keys.rules) for keys in self._keys[start : start + PIPELINE]]
            for flat in await self._client.commands(asked):
                for rule, count in zip(flat[::2], flat[1::2], strict=True):
                    if rule.startswith(kind.encode()):
                        found[rule.decode()] += int(count)
        return dict(found.most_common())

    async def results(self, shard: int, *, after: str, count: int) -> list[tuple[str, bytes]]:
        """Return up to ``count`` (stream id, JSON record) after an id; ``0-0`` = from the start."""
        (entries,) = await self._client.commands(
            [("XRANGE", self._keys[shard].results, f"({after}", "+", "COUNT", count)]
        )
        return [(entry.decode(), fields[1]) for entry, fields in entries]

    async def _runs_of(self, shards: Iterable[int]) -> dict[int, str]:
        numbers = sorted(shards)
        runs = await self._client.current_runs([self._metas[shard] for shard in numbers])
        return dict(zip(numbers, runs, strict=True))

    async def _on_all(self, calls: Iterable[Call]) -> list[Refusal | None]:
        listed = list(calls)
        replies = await self._run(listed)
        return [refusal_of(reply, call.script) for call, reply in zip(listed, replies, strict=True)]

    async def _run(self, calls: Sequence[Call]) -> list[Any]:
        replies: list[Any] = []
        for start in range(0, len(calls), PIPELINE):
            replies += await self._client.call(calls[start : start + PIPELINE])
        return replies
