"""Offering URLs to shards: from anyone, to any shard, idempotent.

The caller repeats an offer until it is taken: RUN and RETRY pass by themselves (the shard's owner
adopts the new run, the master unseals), CLOSED and MISSING mean the job is over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct

import xxhash

from common.frontier import items
from common.frontier.client import FrontierClient
from common.frontier.items import Item
from common.frontier.keys import TaskKeys
from common.frontier.replies import Offered, Refusal, refusal_of
from common.frontier.scripts import LAYOUT_VERSION, RUN, Call
from common.frontier.seen import Buckets, SeenLayout, capacity, fingerprint, signed
from common.model.ids import HostKey, JobId, Task
from common.model.job import JobSpec
from common.web.url import host_key

MAX_BATCH = 128
"""URLs a script call; bounds the time the server is blocked to a few milliseconds."""


def shard_of(host: HostKey, shards: int) -> int:
    """Return the shard of a host: stable for ever, part of the layout version."""
    return xxhash.xxh3_64_intdigest(host.encode()) % shards


def shard_of_url(url: str, spec: JobSpec) -> int:
    """Return the shard that a canonical URL lies in: that of its host, or one of its own."""
    return shard_of(HostKey(url) if spec.shard_by == "url" else host_key(url), spec.shards)


class Offers:
    """The way into the frontier of one job."""

    def __init__(self, client: FrontierClient, *, cluster: str, job: JobId, spec: JobSpec) -> None:
        self._client = client
        self._per_host = spec.per_host
        self._shards = spec.shards
        self._spreads_hosts = spec.shard_by == "url"
        keys = [TaskKeys(cluster, Task(job, shard)) for shard in range(spec.shards)]
        self._keys = keys
        self._seen = [SeenLayout(key, mode=spec.seen, rate=spec.seen_rate) for key in keys]
        self._layers = [1] * spec.shards

    def by_shard(self, found: Sequence[Item]) -> dict[int, list[Item]]:
        """Return the URLs grouped by the shard they belong to."""
        groups: dict[int, list[Item]] = {}
        shards: dict[HostKey, int] = {}
        for item in found:
            shard = shards.get(item.host)
            if self._spreads_hosts:
                shard = shard_of(HostKey(item.url), self._shards)
            elif shard is None:
                shard = shards[item.host] = shard_of(item.host, self._shards)
            groups.setdefault(shard, []).append(item)
        return groups

    def run(self, shard: int) -> str:
        """Return the run of the server that holds a shard, as it answered last."""
        return self._client.known_run(self._keys[shard].meta)

    async def kept(self, runs: Mapping[int, str]) -> list[int]:
        """Return which shards keep what they took, whatever becomes of their servers (rule P7).

        A single server is not waited for: whatever relies on it stands behind it in the same log.

        Args:
            runs: shard -> the run of its server before it took something (:meth:`run`).

        Raises:
            FrontierUnavailable: a server did not answer, or cannot keep it at present.
        """
        if self._client.is_cluster:
            keys = [self._keys[shard].meta for shard in runs]
            now = await self._client.wait_durable(keys)
        else:
            now = [self.run(shard) for shard in runs]
        return [shard for shard, run in zip(runs, now, strict=True) if runs[shard] == run]

    async def offer(self, shard: int, found: Sequence[Item]) -> Offered | Refusal:
        """Offer URLs to one shard, in bounded steps.

        Raises:
            FrontierUnavailable: no answer; the offer may be repeated.
        """
        admitted = discovered = 0
        for start in range(0, len(found), MAX_BATCH):
            answer = await self._offer_batch(shard, found[start : start + MAX_BATCH])
            if isinstance(answer, Refusal):
                return answer
            admitted += answer.admitted
            discovered = answer.discovered
        return Offered(admitted, discovered)

    async def _offer_batch(self, shard: int, batch: Sequence[Item]) -> Offered | Refusal:
        by_host: dict[HostKey, list[Item]] = {}
        for item in batch:
            by_host.setdefault(item.host, []).append(item)
        while True:
            (reply,) = await self._client.call([self._call(shard, by_host)])
            if reply[0] == b"LAYERS":
                self._layers[shard] = reply[1]
                continue
            refusal = refusal_of(reply, "offer")
            return refusal or Offered(reply[1], reply[2])

    def _call(self, shard: int, by_host: dict[HostKey, list[Item]]) -> Call:
        keys, layout, layers = self._keys[shard], self._seen[shard], self._layers[shard]
        buckets = Buckets(layout, layers)
        begin_of_place = Struct(f"<II{layers}H").pack
        names = [keys.meta, keys.ready, keys.pace, keys.hll, keys.busy, *map(keys.queue, by_host)]
        hosts: list[str | bytes | int] = []
        prints: list[str | bytes | int] = []
        places: list[bytes] = []
        queued: list[bytes] = []
        size = 0
        for host, found in by_host.items():
            hosts += (host, len(found))
            for item in found:
                seen, raw = fingerprint(item.identity, layout.mode), items.encode(item)
                first, size = size + 1, size + len(raw)
                places += (begin_of_place(first, size, *buckets.numbers(seen)), seen.bits)
                queued.append(raw)
                prints.append(signed(seen.unsigned))
        args: list[str | bytes | int] = [
            LAYOUT_VERSION, RUN, len(by_host), layers, int(layout.mode == "exact"), self._per_host,
            capacity(layers - 1), b"".join(places), b"".join(queued), *hosts, *prints,
        ]  # fmt: skip
        return Call("offer", names + buckets.names, args)
