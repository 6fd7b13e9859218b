"""The counters of a job and the equation they keep.

``discovered`` is the number of distinct URLs admitted; at any moment it equals the sum of the ten
states below, shard by shard, because one script moves each URL and its counters together. Outside
of the sum stand ``filtered``, links refused before admission, and ``sitemaps``, sitemaps that are
done: while one waits or is read it is counted like a URL, and then leaves the sum on both sides.
Where pages are visited again, ``revisits`` counts the visits after the first that have ended, and
``revisiting`` the URLs queued, delayed or in flight for one; ``filtered`` grows by what a visit
refuses beyond the visits of its page before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

WAITING: Final = ("queued", "delayed", "in_flight")
FINAL: Final = (
    "fetched", "not_modified", "redirected", "denied", "failed", "dead", "dropped",
)  # fmt: skip
VISITS: Final = ("revisits", "revisiting")
NAMES: Final = ("discovered", *WAITING, *FINAL, "filtered", "sitemaps", *VISITS)


def total(counters: Mapping[str, int]) -> int:
    """Return the sum over all states: what ``discovered`` must equal."""
    return sum(counters[name] for name in (*WAITING, *FINAL))


def answers(counters: Mapping[str, int]) -> int:
    """Return about how many pages were got so far, every visit counted.

    Visits under way count as well, so it shrinks by those that are dropped.
    """
    return sum(counters[name] for name in ("fetched", "not_modified", *VISITS))


def is_balanced(counters: Mapping[str, int]) -> bool:
    """Tell whether the conservation equation holds."""
    return counters["discovered"] == total(counters)


def add(many: list[Mapping[str, int]]) -> dict[str, int]:
    """Return the counters summed over shards."""
    return {name: sum(one[name] for one in many) for name in NAMES}
