"""Which links are offered, and what the seen cache may leave out."""

from __future__ import annotations

from typing import cast

import pytest

from common.frontier.items import Item
from common.frontier.scope import ScopeSet
from common.model.job import JobSpec
from worker import outlinks
from worker.outlinks import Outlinks

LINKS = ["http://a.example/1", "http://a.example/2"]
PAGE = "http://a.example/"


def _outlinks(max_depth: int | None = None) -> Outlinks:
    # With this scope no server is asked.
    return Outlinks(cast("ScopeSet", None), JobSpec(scope="any", max_depth=max_depth))


async def _offered(of: Outlinks, *, depth: int = 1) -> list[Item]:
    return (await of.select(LINKS, depth=depth, referrer=PAGE)).offers


async def test_links_whose_offer_was_taken_are_left_out() -> None:
    some = _outlinks()
    some.begin_run("run 1")
    first = await _offered(some)
    assert [item.identity for item in first] == LINKS
    assert await _offered(some) == first, "not taken yet"
    some.taken(first[:1])
    assert await _offered(some) == first[1:]


async def test_another_server_run_may_have_lost_what_was_taken() -> None:
    """P8: its data may be an older copy."""
    some = _outlinks()
    some.begin_run("run 1")
    first = await _offered(some)
    some.taken(first)
    some.begin_run("run 1")
    assert await _offered(some) == []
    some.begin_run("run 2")
    assert await _offered(some) == first


async def test_the_cache_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlinks, "CACHE_LINKS", 1000)
    some = _outlinks()
    some.begin_run("run 1")
    first = await _offered(some)
    some.taken(first)
    for start in range(0, 4 * outlinks.CACHE_LINKS, outlinks.CACHE_LINKS + 1):
        many = [
            Item(first[0].host, f"/{at}", 1, None)
            for at in range(start, start + outlinks.CACHE_LINKS + 1)
        ]
        some.taken(many)
    assert await _offered(some) == first


async def test_links_below_the_deepest_level_are_counted_and_not_offered() -> None:
    some = _outlinks(max_depth=1)
    assert len(await _offered(some, depth=1)) == 2
    below = await some.select(LINKS, depth=2, referrer=PAGE)
    assert (below.offers, dict(below.filtered)) == ([], {"max_depth: 1": 2})
