"""The metrics of a worker; imported only where ``--http`` serves them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from common.model.records import Outcome
from worker.health import Health
from worker.plugin_faults import PluginFaults
from worker.stages import BOUNDS_S, Histogram


def registry_of(health: Health, faults: PluginFaults) -> CollectorRegistry:
    """Return the metrics of a worker, read when they are asked for."""
    registry = CollectorRegistry()
    registry.register(_Metrics(health, faults))
    return registry


class _Metrics(Collector):
    """Turns what is measured into metrics."""

    def __init__(self, health: Health, faults: PluginFaults) -> None:
        self._health = health
        self._faults = faults

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they stand."""
        finished = CounterMetricFamily(
            "crawlctl_urls_finished", "URLs finished by this worker.", labels=["outcome"]
        )
        for outcome in Outcome:
            finished.add_metric([outcome.value], self._health.meter.outcomes[outcome.value])
        yield finished
        yield GaugeMetricFamily(
            "crawlctl_worker_weight", "Share of the tasks beside others'.", self._health.weight
        )
        yield GaugeMetricFamily(
            "crawlctl_worker_fit", "1 if it takes new tasks.", float(self._health.is_fit)
        )
        yield GaugeMetricFamily(
            "crawlctl_loop_lag_seconds",
            "How late the event loop was in the last second, at worst.",
            self._health.load.get("loop_lag_s", 0.0),
        )
        spent = HistogramMetricFamily(
            "crawlctl_stage_seconds",
            "Time in each stage of a page, or of a call.",
            labels=["stage"],
        )
        for stage in self._health.meter.stages:
            spent.add_metric(
                [stage.name], _buckets(stage.histogram), sum_value=stage.histogram.total_s
            )
        yield spent
        failed = CounterMetricFamily(
            "crawlctl_plugin_failures",
            "Times a hook of a plugin failed, and its page with it.",
            labels=["plugin", "hook"],
        )
        for (plugin, hook), count in self._faults.counts.items():
            failed.add_metric([plugin, hook], count)
        yield failed


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds and how many durations are not above each."""
    names = [*map(str, BOUNDS_S), "+Inf"]
    return list(zip(names, accumulate(histogram.counts), strict=True))
