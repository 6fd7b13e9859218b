"""Grants are exact under any history, and a budget never stalls while there is work."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.budget import Move, is_spent, plan_moves
from coordinator.facts import ShardFact
from tests.unit.coordinator.facts_for_tests import shard


class Ledger:
    """Shards that keep grants as the scripts do: claims stop there, takings at the unused."""

    def __init__(self, shards: int) -> None:
        self.shards = [
            {"queued": 0, "in_flight": 0, "used": 0, "grant": 0, "done": 0} for _ in range(shards)
        ]

    def look(self) -> list[ShardFact]:
        return [shard(number, **counts) for number, counts in enumerate(self.shards)]

    def apply(self, move: Move) -> None:
        one = self.shards[move.shard]
        unused = max(0, one["grant"] - one["used"] - one["in_flight"])
        one["grant"] += max(move.amount, -unused)

    def claim(self, number: int) -> None:
        one = self.shards[number]
        if one["queued"] and one["grant"] > one["used"] + one["in_flight"]:
            one["queued"] -= 1
            one["in_flight"] += 1

    def end(self, number: int, *, is_page: bool) -> None:
        one = self.shards[number]
        if one["in_flight"]:
            one["in_flight"] -= 1
            one["used"] += is_page
            one["done"] += 1

    @property
    def granted(self) -> int:
        return sum(one["grant"] for one in self.shards)

    @property
    def used(self) -> int:
        return sum(one["used"] for one in self.shards)


@settings(max_examples=60, deadline=None)
@given(shards=st.integers(1, 12), max_pages=st.integers(1, 60), seed=st.integers(0, 2**32))
def test_grants_never_exceed_the_budget_and_no_page_is_left_while_there_is_work(
    shards: int, max_pages: int, seed: int
) -> None:
    random = Random(seed)
    ledger = Ledger(shards)
    for _ in range(40):
        disturb(ledger, random)
        # Owners act between the look and the moves, and some moves are lost.
        moves = plan_moves(ledger.look(), max_pages=max_pages)
        for move in random.sample(moves, k=len(moves)):
            disturb(ledger, random)
            if random.random() < 0.8:
                ledger.apply(move)
            assert ledger.granted <= max_pages
    drain(ledger, max_pages)
    assert ledger.used <= max_pages
    assert ledger.used == max_pages or not any(one["queued"] for one in ledger.shards)


def disturb(ledger: Ledger, random: Random) -> None:
    for number, one in enumerate(ledger.shards):
        if random.random() < 0.2:
            one["queued"] += random.randrange(6)
        for _ in range(random.randrange(3)):
            ledger.claim(number)
        if random.random() < 0.5:
            ledger.end(number, is_page=random.random() < 0.7)


def drain(ledger: Ledger, max_pages: int) -> None:
    """Work until nothing can be claimed any more; every cycle must bring something."""
    for _ in range(2000):
        before = [dict(one) for one in ledger.shards]
        for move in plan_moves(ledger.look(), max_pages=max_pages):
            ledger.apply(move)
        for number in range(len(ledger.shards)):
            ledger.claim(number)
            ledger.end(number, is_page=True)
        if before == ledger.shards:
            return
    raise AssertionError("the budget moves for ever without being used")


def test_ten_pages_over_sixty_four_hungry_shards_are_granted_in_one_cycle() -> None:
    moves = plan_moves([shard(n, queued=5) for n in range(64)], max_pages=10)
    assert sum(move.amount for move in moves) == 10
    assert all(move.amount == 1 for move in moves)


def test_an_ample_budget_gives_headroom_at_once() -> None:
    (move,) = plan_moves([shard(0, queued=100), shard(1)], max_pages=1_000_000)
    assert move.shard == 0
    assert move.amount > 200


def test_idle_grants_are_taken_back_when_another_shard_starves() -> None:
    looked = [shard(0, grant=10, used=2), shard(1, queued=5)]
    assert plan_moves(looked, max_pages=10) == [Move(0, -8)]


def test_idle_grants_lie_still_while_nobody_is_short() -> None:
    looked = [shard(0, grant=10, used=2), shard(1, queued=5, grant=40)]
    assert plan_moves(looked, max_pages=50) == []


def test_what_is_taken_back_is_not_given_in_the_same_cycle() -> None:
    looked = [shard(0, grant=5, used=2), shard(1, queued=5)]
    assert plan_moves(looked, max_pages=10) == [Move(1, 5), Move(0, -3)]


def test_a_shard_with_work_shares_what_it_hoards() -> None:
    """Shard 0 got everything while it alone had work; its own work would last for hours."""
    looked = [shard(0, queued=1000, grant=1000), shard(1, queued=1000)]
    assert plan_moves(looked, max_pages=1000) == [Move(0, -500)]


def test_pages_held_for_delayed_urls_go_to_shards_with_queued_ones() -> None:
    looked = [shard(0, delayed=3, grant=3), shard(1, queued=3)]
    assert plan_moves(looked, max_pages=3) == [Move(0, -3)]


def test_single_pages_do_not_wander_between_hungry_shards() -> None:
    looked = [shard(n, queued=4, grant=1 if n % 2 else 0) for n in range(8)]
    assert plan_moves(looked, max_pages=4) == []


def test_nothing_moves_once_all_is_in_flight_or_used() -> None:
    looked = [shard(0, queued=9, used=3, in_flight=1, grant=4), shard(1, queued=9)]
    assert plan_moves(looked, max_pages=4) == []


def test_more_granted_than_the_budget_is_taken_back() -> None:
    assert plan_moves([shard(0, grant=9), shard(1)], max_pages=5) == [Move(0, -4)]


def test_a_budget_is_spent_by_pages_used_not_by_pages_in_flight() -> None:
    assert not is_spent([shard(0, used=2, in_flight=1)], 3)
    assert is_spent([shard(0, used=2), shard(1, used=1)], 3)


def test_visits_that_are_paid_for_keep_no_page_from_urls_that_need_one() -> None:
    """Shard 0 has a backlog of visits that never ends; one page is left, and it holds that."""
    looked = [
        shard(0, queued=1000, paid_waiting=1000, used=500, grant=501),
        shard(1, queued=10, used=499, grant=499),
    ]
    assert plan_moves(looked, max_pages=1000) == [Move(0, -1)]
    looked[0] = looked[0]._replace(grant=500)
    assert plan_moves(looked, max_pages=1000) == [Move(1, 1)]
