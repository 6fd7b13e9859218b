"""The metrics of a worker; imported only where ``--http`` serves them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from common.model.records import Outcome
from worker.load import LoadMeter


def registry_of(meter: LoadMeter) -> CollectorRegistry:
    """Return the metrics of a worker, read when they are asked for."""
    registry = CollectorRegistry()
    registry.register(_Metrics(meter))
    return registry


class _Metrics(Collector):
    """Turns the meter's counts into metrics."""

    def __init__(self, meter: LoadMeter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as they stand."""
        finished = CounterMetricFamily(
            "crawlctl_urls_finished", "URLs finished by this worker.", labels=["outcome"]
        )
        for outcome in Outcome:
            finished.add_metric([outcome.value], self._meter.outcomes[outcome.value])
        yield finished
