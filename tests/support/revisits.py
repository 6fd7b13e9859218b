"""What tests of pages that are visited again share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from common.frontier import audit
from common.frontier.visits import Waiting, waiting
from common.model.counters import is_balanced
from common.model.ids import JobId
from tests.support.crawling import Crawls
from tests.support.site import Site
from tests.support.waiting import until, until_true

AGAIN: dict[str, Any] = {"recrawl": 1.0, "recrawl_max": 1.0, "delay": 0.0, "keep_open": True}


async def assert_sound(running: Crawls, *, job: str = "job") -> None:
    """Assert that counters, records and visits to come agree, once nothing moves."""
    assert is_balanced(await running.counters(job))
    shards = range((await running.job(job)).spec.shards)
    held = await audit.held(
        running.client, cluster=running.settings.cluster, job=JobId(job), shards=shards
    )
    assert [one.differences for one in held] == [{}] * len(held)


async def closed(running: Crawls) -> None:
    """Close the job, wait for its end, and assert that all of it agrees."""
    await running.change(keep_open=False)
    await running.finished()
    await assert_sound(running)


async def waiting_visits(running: Crawls) -> Waiting:
    """Return how many pages wait for their next visit, and when the first is due."""
    shards = range((await running.job()).spec.shards)
    return await waiting(
        running.client, cluster=running.settings.cluster, job=JobId("job"), shards=shards
    )


async def visits_to_come(running: Crawls) -> int:
    """Return how many pages will be visited again, or are just being visited."""
    shards = range((await running.job()).spec.shards)
    asked = [("HLEN", running.keys(shard).visited) for shard in shards]
    return sum(await running.client.commands(asked))


async def ended(running: Crawls, **counts: int) -> None:
    """Wait until so many URLs have ended so."""

    async def has_ended() -> bool:
        counted = await running.counters()
        return all(counted[name] == count for name, count in counts.items())

    await until(has_ended)


async def visited_more(site: Site, paths: Iterable[str], times: int, *, host: int = 0) -> None:
    """Wait until each of these paths was asked for so many times more."""
    before, wanted = Counter(site.paths(host)), list(paths)

    def is_seen() -> bool:
        now = Counter(site.paths(host))
        return all(now[path] >= before[path] + times for path in wanted)

    await until_true(is_seen)
