"""Time spent in each stage of a page: counted, averaged, and shown to Prometheus."""

from __future__ import annotations

import time

import pytest
from prometheus_client import generate_latest

from common.frontier import FrontierClient, RedisOptions
from worker.health import Health
from worker.metrics import registry_of
from worker.plugin_faults import PluginFaults
from worker.stages import BOUNDS_S, CALL_STAGES, PAGE_STAGES, Histogram, Stages


def test_a_duration_falls_into_the_bucket_whose_bound_it_does_not_exceed() -> None:
    histogram = Histogram()
    for seconds in (0.0, BOUNDS_S[0], 0.5, 1e6):
        histogram.add(seconds)
    assert (2, 1, 1) == (histogram.counts[0], histogram.counts[8], histogram.counts[-1])
    assert 4 == sum(histogram.counts)
    assert histogram.total_s == pytest.approx(1_000_000.5001)


def test_a_timed_block_counts_also_when_it_fails() -> None:
    histogram = Histogram()
    with pytest.raises(ValueError, match="x"), histogram.timed():
        raise ValueError("x")
    assert 1 == sum(histogram.counts)


def test_occupancy_is_the_mean_number_of_pages_since_it_was_asked_for_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: at)
    stages = Stages()
    stages.pace.add(30.0)
    at = 110.0
    assert 3.0 == stages.occupancy()["pace"]
    stages.pace.add(5.0)
    at = 112.0
    assert 2.5 == stages.occupancy()["pace"]
    at = 113.0
    assert set(PAGE_STAGES | CALL_STAGES) == set(stages.occupancy())
    assert 0.0 == stages.occupancy()["pace"]


async def test_prometheus_is_shown_every_stage_with_growing_buckets() -> None:
    client = FrontierClient(RedisOptions(urls=("redis://127.0.0.1:1/0",)))  # never connected
    health = Health(client, places=8, lease_ttl_s=10, memory_limit_bytes=None)
    meter = health.meter
    meter.stages.parse.add(0.002)
    meter.stages.parse.add(0.2)
    faults = PluginFaults()
    faults.note("prices", "enrich", ValueError("x"))
    text = generate_latest(registry_of(health, faults)).decode()
    assert 'crawlctl_plugin_failures_total{hook="enrich",plugin="prices"} 1.0' in text
    prefix = 'crawlctl_stage_seconds_bucket{le="%s",stage="parse"} %s'
    for le, count in (("0.001", "0.0"), ("0.003", "1.0"), ("0.3", "2.0"), ("+Inf", "2.0")):
        assert prefix % (le, count) in text
    assert 'crawlctl_stage_seconds_sum{stage="parse"} 0.202' in text
    for name in PAGE_STAGES | CALL_STAGES:
        assert f'crawlctl_stage_seconds_count{{stage="{name}"}}' in text
