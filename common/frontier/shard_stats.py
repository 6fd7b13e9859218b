"""What one atomic look at a shard shows."""

from __future__ import annotations

from typing import NamedTuple

from common.frontier.replies import ShardState
from common.model import counters


class ShardStats(NamedTuple):
    """One atomic look at a shard."""

    shard: int
    exists: bool
    state: ShardState | None
    run: str
    """Server run it was adopted under."""
    token: int
    """The highest fencing token seen."""
    counters: dict[str, int]
    staged: int
    """Seed chunks not offered yet (counted on shard 0)."""
    grant: int
    """Pages it may fetch in all."""
    seen_estimate: int
    """Distinct URLs offered, by HyperLogLog."""
    layers: int
    """Of its seen-set."""
    inserted: int = 0
    """URLs in the newest layer of its seen-set."""
    refilled: int = 0
    """Dead letters put back, sitemaps done, pages due for a visit: with ``discovered``, all ever
    queued anew."""
    trimmed: int = 0
    """Results dropped after every consumer group had acknowledged them."""
    sitemaps: int = 0
    """Sitemaps done, which count among what was offered but not as discovered."""

    paid: int = 0
    """URLs that have used up their page of the budgets at an earlier visit and are not counted as
    fetched or not modified now."""
    paid_in_flight: int = 0
    """Those of them that are in flight."""
    paid_ended: int = 0
    """Those of them whose last visit has ended, but gave no page."""

    @property
    def is_empty(self) -> bool:
        """Nothing queued, delayed, in flight or staged."""
        waiting = sum(self.counters[name] for name in counters.WAITING)
        return self.exists and waiting == 0 and self.staged == 0


def parse_stats(shard: int, flat: list[bytes], staged: int, distinct: int) -> ShardStats:
    """Return what ``stats.lua`` answered of a shard."""
    meta = {flat[at].decode(): flat[at + 1].decode() for at in range(0, len(flat), 2)}
    return ShardStats(
        shard=shard,
        exists="version" in meta,
        state=ShardState(meta["state"]) if "state" in meta else None,
        run=meta.get("run", ""),
        token=int(meta.get("fence", 0)),
        counters={name: int(meta.get(name, 0)) for name in counters.NAMES},
        staged=staged,
        grant=int(meta.get("grant", 0)),
        seen_estimate=distinct,
        layers=int(meta.get("layers", 0)),
        inserted=int(meta.get("inserted", 0)),
        refilled=int(meta.get("refilled", 0)),
        trimmed=int(meta.get("trimmed", 0)),
        sitemaps=int(meta.get("sitemaps", 0)),
        paid=int(meta.get("paid", 0)),
        paid_in_flight=int(meta.get("paid_in_flight", 0)),
        paid_ended=int(meta.get("paid_ended", 0)),
    )
