"""Whether any seed answered, out of counters and records."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from common.model import counters
from common.model.records import Outcome
from crawlctl.waiting import unanswered


class Records:
    """Two shards: an empty one, and one with these records."""

    def __init__(self, *records: dict[str, Any]) -> None:
        self._entries = [(f"{at}-1", msgspec.json.encode(one)) for at, one in enumerate(records, 1)]

    async def results(self, shard: int, *, after: str, count: int) -> list[tuple[str, bytes]]:
        number = int(after.partition("-")[0])
        return self._entries[number : number + count] if shard == 1 else []


def record(code: str | None = None, *, status: int | None = None) -> dict[str, Any]:
    error = None if code is None else {"code": code, "message": ""}
    return {"outcome": "dead", "depth": 0, "status": status, "error": error}


def counted(**some: int) -> dict[str, int]:
    return dict.fromkeys(counters.NAMES, 0) | some


@pytest.mark.parametrize("outcome", ["fetched", "not_modified", "redirected", "denied"])
async def test_a_page_that_was_reached_means_a_seed_that_answered(outcome: str) -> None:
    assert Outcome(outcome)
    assert await unanswered(Records(), 2, counted(**{outcome: 1})) is None


async def test_a_response_is_an_answer_even_where_it_is_an_error() -> None:
    records = Records(record("connect_refused"), record("server_error", status=503))
    assert await unanswered(records, 2, counted(dead=2)) is None


async def test_without_any_answer_the_causes_are_named_commonest_first() -> None:
    records = Records(record("dns_not_found"), *[record("connect_refused")] * 600)
    assert await unanswered(records, 2, counted(dead=601)) == ["connect_refused", "dns_not_found"]
    assert await unanswered(Records(), 2, counted()) == []
