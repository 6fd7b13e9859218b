"""One shard as its owner sees it: adopt, claim, settle, recover.

Every call carries the fencing token and the server's run id; any of them may answer a refusal, and
a refusal means that nothing was done. Calls are safe to repeat, but a claim whose reply was lost
leaves URLs in flight that nobody works on: after any failed claim call :meth:`TaskFrontier.adopt`,
so that the lost claim can no longer happen, then :meth:`TaskFrontier.recover`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from common.frontier import items
from common.frontier.client import FrontierClient
from common.frontier.items import Item
from common.frontier.keys import HostQueues, TaskKeys
from common.frontier.replies import Adopted, Claim, Claimed, Refusal, ShardState, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, RUN, Call
from common.frontier.settling import (
    NOTHING,
    Finished,
    Release,
    Retry,
    SettleCalls,
    Settled,
    SitemapRead,
    claim_names,
)
from common.model.ids import HostKey, Task, Token
from common.model.job import JobSpec

HOLD_MS = 5_000
"""A claim may be sent for this long; later it must be released (design rule P9)."""
MAX_OWNERS = 5
"""A URL that this many owners lost in flight is given up: it may be what ends them."""
SUSPECT_OWNERS = MAX_OWNERS - 1
"""One that so many lost is tried once more, alone. Up to here all that was in flight is counted,
since to know what was on the wire would cost a round trip a page; it harms no innocent one."""
LOOK_AHEAD = 64
"""Hosts and delayed URLs a claim looks ahead."""
RECOVER_AT_ONCE = 4
RECOVER_BATCH = 250
"""Claims a requeue call; keeps each call under ten milliseconds."""


class _Lost(NamedTuple):
    """What is in flight and nobody works on."""

    claim: int
    owner: int
    item: bytes


class TaskFrontier:
    """The frontier of one task, under one fencing token."""

    def __init__(
        self, client: FrontierClient, *, cluster: str, task: Task, spec: JobSpec, token: Token
    ) -> None:
        self._client = client
        self._keys = TaskKeys(cluster, task)
        self._names = claim_names(self._keys)
        self._spec = spec
        self.token = token
        self._lasts_ms = int(spec.timeout * 1000)
        # Where shards share hosts, the pages of a host are counted in its ledger.
        self._pages_per_host = spec.max_pages_per_host if spec.shard_by == "host" else None
        self._settling = SettleCalls(
            self._keys, token, counts_pages=self._pages_per_host is not None
        )
        self._run = ""
        """The server run of the adoption. Nothing decided under one run is written under another:
        where that may have lost what was acknowledged, it has to be decided anew."""
        self._adoption = 0
        """Above the number of every claim made before it; 0 = not adopted yet."""

    @property
    def run(self) -> str:
        """The server run of the last adoption."""
        return self._run

    @property
    def is_durable(self) -> bool:
        """Whether a new server run has all that was acknowledged before."""
        return self._client.is_durable

    async def current_run(self) -> str:
        """Return the run of the server that holds the whole shard now.

        Raises:
            FrontierUnavailable: it does not answer, or the shard is being moved to another.
        """
        run = await self._client.current_run(self._keys.meta)
        await self._client.check_whole([self._keys.meta])
        return run

    async def adopt(self, run: str, *, state: ShardState, revision: int) -> Adopted | Refusal:
        """Begin with the shard, or go on with it after the server was restarted.

        Args:
            run: the server run, read *before* the lock was verified in etcd.
            state: what the shard is to accept, by the job's state in etcd.
            revision: the job's revision that state was read at.
        """
        # Where a restart may have lost the last request times, hosts rest for one delay.
        quiet_ms = 0 if self.is_durable else int(self._spec.delay * 1000)
        args: list[str | bytes | int] = [LAYOUT_VERSION, run, self.token, revision, state.value]
        (reply,) = await self._client.call([Call("adopt", [self._keys.meta], [*args, quiet_ms])])
        refusal = refusal_of(reply, "adopt")
        if refusal:
            return refusal
        self._run, self._adoption = run, reply[3]
        return Adopted(reply[1], bool(reply[2]))

    async def recover(self, held: Collection[int], *, dead_below: int) -> int | Refusal:
        """Requeue what is in flight here and not held: takeover and reconcile in one.

        Own claims made since the last :meth:`adopt` are left alone: their replies may be under
        way.

        Args:
            held: claims under this token that are being worked on.
            dead_below: tokens below it belong to processes known to be dead.

        Returns:
            How many URLs went back to their queues.
        """
        # Host by host, so that a call touches few queues.
        lost: dict[bytes, list[_Lost]] = {}
        cursor: bytes | int = 0
        while True:
            ((cursor, flat),) = await self._client.commands(
                [("HSCAN", self._keys.in_flight, cursor, "COUNT", 2 * RECOVER_BATCH)]
            )
            for number, entry in zip(map(int, flat[::2]), flat[1::2], strict=True):
                if self._is_lost(number, entry, held):
                    owner, host, item = entry.split(b"\n", 2)
                    lost.setdefault(host, []).append(_Lost(number, int(owner), item))
            if int(cursor) == 0:
                break
        in_order: list[tuple[HostKey, _Lost]] = []
        for raw_host, ones in lost.items():
            host_key = HostKey(raw_host.decode())
            # The last claimed first, since each goes to the front.
            in_order += [(host_key, one) for one in sorted(ones, reverse=True)]
        requeued = 0
        starts = range(0, len(in_order), RECOVER_BATCH)
        batches = [in_order[at : at + RECOVER_BATCH] for at in starts]
        for start in range(0, len(batches), RECOVER_AT_ONCE):  # the server works while we pack
            together = batches[start : start + RECOVER_AT_ONCE]
            answers = await asyncio.gather(*(self._requeue(one, dead_below) for one in together))
            for answer in answers:
                if isinstance(answer, Refusal):
                    return answer
                requeued += answer
        return requeued

    def _is_lost(self, claim: int, entry: bytes, held: Collection[int]) -> bool:
        is_recent = claim > self._adoption and entry.startswith(b"%d\n" % self.token)
        return not is_recent and claim not in held

    async def _requeue(
        self, lost: Sequence[tuple[HostKey, _Lost]], dead_below: int
    ) -> int | Refusal:
        queues = HostQueues(self._keys)
        args: list[str | bytes | int] = []
        for host, (number, owner, raw) in lost:
            is_own = owner == self.token
            item = b"" if is_own else _blamed(host, raw, is_due=owner >= dead_below)
            args += (number, queues.index(host), item)
        head = [self._spec.per_host, self._lasts_ms]
        call = self._call(
            "requeue",
            self._names + queues.names,
            [*self._owner(), dead_below, *head, *args],
        )
        (reply,) = await self._client.call([call])
        return refusal_of(reply, "requeue") or int(reply[1])

    async def claim(
        self,
        want: int,
        hosts: Sequence[tuple[HostKey, int]],
        *,
        leads_ms: Mapping[HostKey, int] = NOTHING,
        ended: Sequence[tuple[int, int]] = (),
    ) -> Claimed | Refusal:
        """Take up to ``want`` due URLs of the named hosts, in their order.

        Args:
            want: URLs wanted; 0 only looks ahead.
            hosts: (host, its delay in ms), from the last answer's ``ahead``.
            leads_ms: by host, how long before its time it counts as due; only for hosts whose
                permits are known to keep the delay.
            ended: claims whose slots are free already, as for :meth:`free`; in the same round trip.

        Raises:
            FrontierUnavailable: no answer; :meth:`adopt` and :meth:`recover` before the next claim.
        """
        keys, spec, adoption = self._keys, self._spec, self._adoption
        queues = [keys.queue(host) for host, _ in hosts]
        names = [
            *self._names, keys.delayed, keys.pages, keys.blocked, keys.delays, *queues,
        ]  # fmt: skip
        limits = (spec.per_host, self._pages_per_host or 0)
        args: list[str | bytes | int] = [
            *self._owner(), adoption, want, HOLD_MS, self._lasts_ms, *limits, LOOK_AHEAD,
        ]  # fmt: skip
        for host, delay_ms in hosts:
            args += (host, delay_ms, leads_ms.get(host, 0))
        calls = [self._free(ended)] if ended else []
        *_, reply = await self._client.call([*calls, self._call("claim", names, args)])
        refusal = refusal_of(reply, "claim")
        if refusal:
            return refusal
        if adoption != self._adoption:  # adopted anew meanwhile: recovered as a lost claim
            return Refusal.RUN
        _, state, flat, ahead, delayed, wait_ms, delays = reply
        claims = [
            Claim(flat[at], hosts[flat[at + 1] - 1][0], flat[at + 2], flat[at + 3].decode())
            for at in range(0, len(flat), 4)
        ]
        due = [(HostKey(ahead[at].decode()), int(ahead[at + 1])) for at in range(0, len(ahead), 2)]
        live = {
            HostKey(delays[at].decode()): int(delays[at + 1]) for at in range(0, len(delays), 2)
        }
        return Claimed(ShardState(state.decode()), claims, due, delayed, int(wait_ms), live)

    async def promote(self, members: Sequence[bytes]) -> int | Refusal:
        """Move delayed URLs that are due to their hosts' queues; return how many moved."""
        keys, queues = self._keys, HostQueues(self._keys)
        args: list[str | bytes | int] = []
        for member in members:
            host = HostKey(member.partition(b"\n")[0].decode())
            args += (member, queues.index(host))
        names = [keys.meta, keys.ready, keys.pace, keys.busy, keys.delayed, *queues.names]
        call = self._call("promote", names, [*self._owner(), self._spec.per_host, *args])
        (reply,) = await self._client.call([call])
        return refusal_of(reply, "promote") or int(reply[1])

    async def settle(
        self,
        *,
        finished: Sequence[Finished] = (),
        retries: Sequence[Retry] = (),
        releases: Sequence[Release] = (),
        sitemaps: Sequence[SitemapRead] = (),
        filtered: Mapping[str, int] = NOTHING,
    ) -> Settled | Refusal:
        """Finish, postpone and give back claims, in one round trip.

        All outlinks of ``finished`` and ``sitemaps`` must have been offered and taken before.

        Args:
            filtered: links refused before admission since the last call, by rule.
        """
        calls = self._settling.calls(
            self._run,
            finished=finished,
            retries=retries,
            releases=releases,
            sitemaps=sitemaps,
            filtered=filtered,
        )
        gone: list[int] = []
        for call, reply in zip(calls, await self._client.call(calls), strict=True):
            refusal = refusal_of(reply, call.script)
            if refusal:
                return refusal
            gone += map(int, reply[1])
        return Settled(gone)

    async def count_owners(self, claim: int, item: Item) -> bool:
        """Write a claim's item anew, for one that is to be tried alone; the claim begins anew.

        Args:
            claim: in flight here.
            item: what it is about, with the owners it would have outlived were this one to end now.

        Returns:
            Whether it was written: the claim and its slot are still held under this token.
        """
        keys, lasts_ms = self._keys, HOLD_MS + self._lasts_ms
        names = [keys.meta, keys.slots, keys.slot, keys.in_flight]
        args: list[str | bytes | int] = [*self._owner(), claim, items.encode(item), lasts_ms]
        (reply,) = await self._client.call([self._call("suspect", names, args)])
        return refusal_of(reply, "suspect") is None and reply[1] == 1

    async def free(self, ended: Sequence[tuple[int, int]]) -> None:
        """Give back the slots of claims whose responses have ended, owner or not.

        Args:
            ended: (claim, ms since its response ended).
        """
        await self._client.call([self._free(ended)])

    def _free(self, ended: Sequence[tuple[int, int]]) -> Call:
        keys = self._keys
        args: list[str | bytes | int] = [LAYOUT_VERSION, self._spec.per_host]
        for claim, ago_ms in ended:
            args += (claim, ago_ms)
        names = [keys.meta, keys.ready, keys.pace, keys.slots, keys.slot, keys.busy]
        return Call("free", names, args)

    def _owner(self) -> tuple[str, str, int]:
        return LAYOUT_VERSION, RUN, self.token

    def _call(self, script: str, keys: list[str], args: list[str | bytes | int]) -> Call:
        return Call(script, keys, args, self._run)


def _blamed(host: HostKey, raw: bytes, *, is_due: bool) -> bytes:
    """Return the item of a URL that an owner lost in flight; empty where it stays as it is.

    Above ``SUSPECT_OWNERS`` only requests that were sent alone count, which is written before they
    are. Processes that were ended on purpose (not ``is_due``) say nothing against a URL.
    """
    if not is_due and not items.may_have_owners(raw):
        return b""
    known = items.decode(host, raw)
    if is_due:
        owners = max(known.owners, min(known.owners + 1, SUSPECT_OWNERS))
    else:
        owners = min(known.owners, SUSPECT_OWNERS)
    return b"" if owners == known.owners else items.encode(known._replace(owners=owners))


def item_of(claim: Claim) -> Item:
    """Return what a claim is about."""
    return items.decode(claim.host, claim.item)
