"""The page budget of a job as a ledger of grants (design rule P10).

Each shard may claim pages up to its grant; the grants never add up to more than ``max_pages``, so
the budget is exact however many owners claim at once. What the master decides here is only where
the grants lie: they follow the work, and what idle shards do not use is taken back before it is
given elsewhere. What a shard really gave back is known from the next look at it, never assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from coordinator.facts import ShardFact

_HEADROOM = 16
"""Pages granted beyond the known work where the budget is ample, so that a shard that finds new
links does not wait for the next cycle."""


class Move(NamedTuple):
    """Change a shard's grant by an amount; a negative one takes back what is unused."""

    shard: int
    amount: int


def is_spent(shards: Iterable[ShardFact], max_pages: int) -> bool:
    """Tell whether the whole budget was used: what is queued is to be dropped."""
    return sum(shard.used for shard in shards) >= max_pages


def plan_moves(shards: Sequence[ShardFact], *, max_pages: int) -> list[Move]:
    """Return the changes of grants that bring the budget to the work.

    Gifts come only from what no shard holds (``max_pages`` minus all grants as read), so they are
    safe beside the takings of the same plan, whatever becomes of those.
    """
    left = max_pages - sum(shard.taken for shard in shards)
    fair = _fair_shares(shards, left)
    needs = {
        shard.shard: fair[shard.shard] - shard.unused
        for shard in sorted(shards, key=lambda one: (one.unused, one.shard))
        # Not for every page: a shard with more than half of its fair share is left alone.
        if fair[shard.shard] > 0 and shard.unused * 2 <= fair[shard.shard]
    }
    pool = max_pages - sum(shard.grant for shard in shards)
    gifts = _share_out(pool, needs)

    starving = sum(
        needs[shard.shard] for shard in shards if shard.unused == 0 and shard.shard in needs
    )
    moves = [Move(shard, amount) for shard, amount in gifts.items() if amount > 0]
    return moves + _takings(shards, fair, short=starving - pool)


def _takings(shards: Sequence[ShardFact], fair: Mapping[int, int], *, short: int) -> list[Move]:
    """Take from those furthest above their fair share what starving shards are short of."""
    moves: list[Move] = []
    for shard in sorted(shards, key=lambda one: fair[one.shard] - one.unused):
        amount = min(short, shard.unused - fair[shard.shard])
        if amount <= 0:
            break
        moves.append(Move(shard.shard, -amount))
        short -= amount
    return moves


def _fair_shares(shards: Sequence[ShardFact], left: int) -> dict[int, int]:
    """Share out what is left of the budget: to queued URLs, then delayed ones, then as headroom.

    Pages that are visited again need none: a shard that waits for them alone would keep it for ever
    from those that have other URLs, before which their hosts' visits stand in line, too.
    """
    # Who already holds unused pages comes first, so that single pages do not wander for nothing.
    order = sorted(shards, key=lambda shard: (-shard.unused, shard.shard))
    fair = dict.fromkeys((shard.shard for shard in shards), 0)
    for wants in (
        {shard.shard: min(shard.queued, shard.hungry) for shard in order},
        {shard.shard: max(0, shard.hungry - shard.queued) for shard in order},
        {
            shard.shard: _HEADROOM + shard.waiting + shard.in_flight
            for shard in order
            if not shard.is_settled
        },
    ):
        for number, amount in _share_out(left, wants).items():
            fair[number] += amount
            left -= amount
    return fair


def _share_out(amount: int, wants: Mapping[int, int]) -> dict[int, int]:
    """Divide ``amount`` evenly, to each at most what it wants, in the order of ``wants``."""
    given = dict.fromkeys(wants, 0)
    hungry = [one for one, want in wants.items() if want > 0]
    while amount > 0 and hungry:
        each = max(1, amount // len(hungry))
        for one in hungry:
            step = min(each, wants[one] - given[one], amount)
            given[one] += step
            amount -= step
        hungry = [one for one in hungry if given[one] < wants[one]]
    return given
