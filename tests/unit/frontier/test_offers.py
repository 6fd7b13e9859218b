"""Which shard a URL belongs to."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from common.frontier.items import Item
from common.frontier.offers import Offers, shard_of
from common.model.ids import HostKey, JobId
from common.model.job import JobSpec


def _offers(shards: int) -> Offers:
    spec = JobSpec(shards=shards)
    return Offers(cast("Any", None), cluster="c", job=JobId("j"), spec=spec)


def test_the_shard_of_a_host_never_changes() -> None:
    """Part of the layout version: a job whose hosts moved would crawl them twice."""
    hosts = [HostKey(f"http://h{number}.example") for number in range(5)]
    assert [shard_of(host, 64) for host in hosts] == [25, 35, 45, 33, 41]


def test_hosts_spread_over_the_shards() -> None:
    counts = Counter(shard_of(HostKey(f"http://h{number}.example"), 16) for number in range(4000))
    assert len(counts) == 16
    assert max(counts.values()) < 1.5 * 4000 / 16


def test_urls_of_one_host_stay_together_and_in_order() -> None:
    found = [
        Item(HostKey(f"http://h{number % 5}.example"), f"/{number}", 0, None)
        for number in range(50)
    ]
    groups = _offers(8).by_shard(found)
    assert sorted((item for group in groups.values() for item in group), key=found.index) == found
    for shard, group in groups.items():
        assert {shard_of(item.host, 8) for item in group} == {shard}
        assert sorted(group, key=found.index) == group
