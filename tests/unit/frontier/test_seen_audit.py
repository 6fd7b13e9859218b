"""The seen-set's own counts against each other: what an estimate may not explain is told."""

from __future__ import annotations

from common.frontier.seen import capacity
from common.frontier.seen_audit import seen_discrepancies, seen_state
from common.frontier.shard_stats import ShardStats
from common.model import counters
from common.model.job import JobSpec

EXACT, BLOOM = JobSpec(), JobSpec(seen="bloom", seen_rate=0.01)


def shard(admitted: int, offered: int, *, layers: int = 1, inserted: int = 0) -> ShardStats:
    return ShardStats(
        shard=3, exists=True, state=None, run="r", token=1, staged=0, grant=0, layers=layers,
        counters=dict.fromkeys(counters.NAMES, 0) | {"discovered": admitted, "queued": admitted},
        seen_estimate=offered, inserted=inserted,
    )  # fmt: skip


def test_counts_that_agree_within_the_estimates_error_are_not_worth_a_word() -> None:
    for admitted, offered in ((0, 0), (10, 12), (100_000, 103_500), (100_000, 96_500)):
        assert seen_discrepancies(EXACT, [shard(admitted, offered)]) == []


def test_a_sitemap_that_is_done_was_offered_though_it_counts_no_more() -> None:
    many = shard(100, 250)
    assert seen_discrepancies(EXACT, [many]) != []
    assert seen_discrepancies(EXACT, [many._replace(sitemaps=150)]) == []


def test_urls_that_were_skipped_are_told() -> None:
    (sentence,) = seen_discrepancies(EXACT, [shard(100_000, 106_000), shard(5, 5)])
    assert sentence.startswith("shard 3: about 106000 distinct URLs were offered, but only 100000")


def test_urls_that_were_taken_twice_are_told() -> None:
    (sentence,) = seen_discrepancies(EXACT, [shard(100_000, 90_000)])
    assert "forgot some" in sentence


def test_what_a_filter_without_confirmation_may_lose_is_expected() -> None:
    lossy = JobSpec(seen="bloom", seen_rate=0.01)
    full = shard(100_000, 104_400, layers=8, inserted=capacity(7))
    assert seen_discrepancies(lossy, [full]) == []
    assert len(seen_discrepancies(EXACT, [full])) == 1


def test_a_shard_that_is_missing_says_nothing() -> None:
    gone = shard(0, 0)._replace(exists=False, layers=0)
    assert seen_discrepancies(EXACT, [gone]) == []
    assert seen_state(BLOOM, [gone]).layers == 0


def test_the_state_is_that_of_all_shards() -> None:
    state = seen_state(BLOOM, [shard(6144 * 3, 1, layers=2, inserted=12_288), shard(0, 0)])
    assert (state.layers, state.fill) == (2, 0.25)
    assert 0 < state.false_positive_rate < 0.01
    assert 0 < state.false_positives < 6144 * 3 * 0.01
    assert seen_state(EXACT, [shard(6144, 1)]).false_positives == 0
