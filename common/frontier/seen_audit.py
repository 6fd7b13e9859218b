"""The seen-set of a job, judged: how full it is, how often it errs, whether its counts agree.

The HyperLogLog counts distinct fingerprints offered, the counter ``discovered`` those admitted. In
a sound shard they are equal, but for the error of the one (0.81 % of its estimate, standard
deviation) and for what a filter without confirmation took for known. More offered than admitted
means that the seen-set calls new URLs known; more admitted than offered, that it forgot some and
took them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from common.frontier.seen import capacity, estimated_rate
from common.frontier.shard_stats import ShardStats
from common.model.job import JobSpec

_HLL_ERROR: Final = 0.0081
_DEVIATIONS: Final = 5
_SLACK: Final = 10
"""URLs a small shard may differ by."""


class SeenState(NamedTuple):
    """What the seen-set of a job is like now."""

    layers: int
    """Of the shard that has most."""
    fill: float
    """Of the newest layers, their mean, from 0 to 1."""
    false_positive_rate: float
    """Share of new URLs taken for known ones now; 0 in mode exact."""
    false_positives: float
    """URLs that may have been lost to that so far; an upper estimate."""


def seen_state(spec: JobSpec, stats: Sequence[ShardStats]) -> SeenState:
    """Return the state of the seen-set over all shards."""
    there = [one for one in stats if one.exists and one.layers > 0]
    if not there:
        return SeenState(0, 0.0, 0.0, 0.0)
    rates = [_rate(spec, one) for one in there]
    return SeenState(
        layers=max(one.layers for one in there),
        fill=sum(one.inserted / capacity(one.layers - 1) for one in there) / len(there),
        false_positive_rate=sum(rates) / len(there),
        # The rate only grew until now, so that at its present value this is the most expected.
        false_positives=sum(
            rate * one.counters["discovered"] for rate, one in zip(rates, there, strict=True)
        ),
    )


def _rate(spec: JobSpec, one: ShardStats) -> float:
    if spec.seen == "exact":
        return 0.0
    return estimated_rate(spec.seen_rate, layers=one.layers, inserted=one.inserted)


def seen_discrepancies(spec: JobSpec, stats: Sequence[ShardStats]) -> list[str]:
    """Return a sentence for each shard whose counts differ by more than the estimate's error."""
    found = []
    for one in stats:
        if not one.exists:
            continue
        admitted, offered = one.counters["discovered"] + one.sitemaps, one.seen_estimate
        margin = _SLACK + _DEVIATIONS * _HLL_ERROR * admitted
        if offered > admitted + margin + _DEVIATIONS * _rate(spec, one) * admitted:
            found.append(
                f"shard {one.shard}: about {offered} distinct URLs were offered, but only "
                f"{admitted} admitted: its seen-set took new URLs for known ones"
            )
        elif admitted > offered + margin:
            found.append(
                f"shard {one.shard}: {admitted} URLs were admitted, but only about {offered} "
                "distinct ones offered: its seen-set forgot some, which were taken twice"
            )
    return found
