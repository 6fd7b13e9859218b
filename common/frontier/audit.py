"""Counting what a shard really holds, to compare with its counters.

Counters move with the URLs they count, in one script, so the two can differ only by a fault or by
somebody who wrote to the keys. What is read here is not one moment: a crawl goes on meanwhile. A
difference that stays the same from look to look is real; one that comes and goes is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from common.frontier.client import FrontierClient
from common.frontier.keys import TaskKeys
from common.model import counters
from common.model.ids import JobId, Task

_FIELDS = ("in_flight", "delayed", "dead", "trimmed", "revisiting", *counters.FINAL)


class Held(NamedTuple):
    """What a shard holds beside what its counters say."""

    shard: int
    differences: dict[str, tuple[int, int]]
    """What differs: counted and really there."""
    results: int
    """Records that are kept."""
    results_bytes: int
    """About what they take; 0 where the server does not tell."""


async def held(
    client: FrontierClient, *, cluster: str, job: JobId, shards: Iterable[int]
) -> list[Held]:
    """Return what shards hold.

    Raises:
        FrontierUnavailable: Redis did not answer.
    """
    found = []
    for shard in shards:
        keys = TaskKeys(cluster, Task(job, shard))
        # Each shard in a round trip of its own: a look is short, and other calls pass between.
        replies = await client.commands(
            [
                ("HMGET", keys.meta, *_FIELDS),
                ("HLEN", keys.in_flight),
                ("ZCARD", keys.delayed),
                ("HLEN", keys.dead),
                ("XLEN", keys.results),
                ("ZCARD", keys.due),
                ("HLEN", keys.visited),
                ("MEMORY", "USAGE", keys.results, "SAMPLES", 5),
            ]
        )
        counted = dict(zip(_FIELDS, (int(value or 0) for value in replies[0]), strict=True))
        in_flight, delayed, dead, results, due, visited, size_bytes = (
            int(reply or 0) for reply in replies[1:]
        )
        recorded = sum(counted[name] for name in (*counters.FINAL, "revisiting"))
        pairs = {
            "in flight": (counted["in_flight"], in_flight),
            "delayed": (counted["delayed"], delayed),
            "dead letters": (counted["dead"], dead),
            "records": (recorded - counted["trimmed"], results),
            "pages to be visited again": (due + counted["revisiting"], visited),
        }
        differences = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        found.append(Held(shard, differences, results, size_bytes))
    return found
