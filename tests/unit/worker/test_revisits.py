"""What a visit leaves behind for the next one, by how it ended."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from common.frontier import items
from common.frontier.items import Item
from common.frontier.visits import Known, decode_known
from common.model.ids import HostKey
from common.model.job import JobSpec
from common.model.records import ErrorInfo, Outcome, ResultRecord
from worker.fetched import Fetched
from worker.revisits import Revisits, condition_of

HOST = HostKey("http://h.example")
URL = f"{HOST}/p"
FIRST = Item(HOST, "/p", 1, None)
HEADERS = {"ETag": '"1"', "Last-Modified": "Mon, 30 Nov 2026 10:00:00 GMT"}
REVISITS = Revisits(JobSpec(recrawl=60.0))


def fetched(headers: dict[str, str] | None = None) -> Fetched:
    return Fetched(
        url=URL, final_url=URL, headers=HEADERS if headers is None else headers,
        started_at=0.0, ended_at=0.0, recorded_at="2026-11-30T10:00:00.000Z",
    )  # fmt: skip


def record(outcome: Outcome = Outcome.FETCHED, **facts: Any) -> ResultRecord:
    values = {
        "url": URL, "final_url": URL, "status": 200, "outcome": outcome, "depth": 1,
        "referrer": None, "fetched_at": "2026-11-30T10:00:00.000Z", "worker": "w", "token": 1,
        "title": "t", "sha256": 32 * "ab", "bytes": 5,
    }  # fmt: skip
    return ResultRecord(**values | facts)


def after(visit: bytes) -> tuple[int, Item, Known]:
    """Return ms until the next visit, its item, and what is known then."""
    wait_ms, _, raw = visit[8:].partition(b"\n")
    item = items.decode(HOST, raw)
    return int(wait_ms), item, decode_known(item.known)


def visited(*records: ResultRecord, item: Item = FIRST) -> tuple[ResultRecord, Item, Known]:
    """Return the last record, and what is left, after these visits."""
    assert records
    for one in records:
        ended, visit, _ = REVISITS.noted(item, one, fetched())
        _, item, known = after(visit)
    return ended, item, known


def test_a_page_is_asked_for_on_what_its_last_answer_brought() -> None:
    ended, item, known = visited(record())
    assert (ended.visit, ended.changed, known.interval_s, item.is_paid) == (1, None, 60.0, True)
    condition = condition_of(item)
    assert condition is not None
    assert condition.headers == {
        "If-None-Match": HEADERS["ETag"], "If-Modified-Since": HEADERS["Last-Modified"],
    }  # fmt: skip
    assert condition.recorded_at == fetched().recorded_at
    assert item.url == URL


def test_a_304_leaves_the_facts_of_the_page_and_says_unchanged() -> None:
    _, item, _ = visited(record(outlinks=7, encoding="UTF-8"))
    bare = record(Outcome.NOT_MODIFIED, status=304, title=None, sha256=None, bytes=0)
    ended, visit, _ = REVISITS.noted(item, bare, fetched({"ETag": '"2"'}))
    assert (ended.status, ended.visit, ended.changed) == (304, 2, False)
    assert (ended.title, ended.sha256, ended.bytes, ended.outlinks) == ("t", 32 * "ab", 5, 7)
    wait_ms, _, known = after(visit)
    assert (wait_ms, known.interval_s, known.etag) == (120_000, 120.0, '"2"')
    assert known.modified == HEADERS["Last-Modified"]


@pytest.mark.parametrize(
    ("second", "changed", "interval_s"),
    [
        (record(), False, 120.0),
        (record(sha256=32 * "cd"), True, 30.0),
        (record(status=404), True, 30.0),
        (record(Outcome.REDIRECTED, status=301, location=f"{HOST}/q"), True, 30.0),
        (record(Outcome.DEAD, status=503), None, 60.0),
        (record(Outcome.FAILED, status=None), None, 60.0),
        (record(Outcome.DENIED, status=None), None, 60.0),
    ],
)
def test_the_interval_follows_what_was_found(
    second: ResultRecord, changed: bool | None, interval_s: float
) -> None:
    ended, _, known = visited(record(), second)
    assert (ended.changed, known.interval_s) == (changed, interval_s)


def test_a_visit_without_answer_keeps_what_is_known() -> None:
    _, item, _ = visited(record(), record(Outcome.DEAD, status=503))
    assert condition_of(item) is not None
    assert item.is_paid, "it has used up its page"
    ended, _, _ = visited(record(), item=item)
    assert ended.changed is False, "as it was before it was down"


@pytest.mark.parametrize(
    "one",
    [
        record(status=404), record(status=203), record(truncated=True),
        record(final_url=f"{URL}?bounced"),
        record(Outcome.REDIRECTED, status=301, location=f"{HOST}/q"),
        record(Outcome.DEAD, status=503),
    ],
)  # fmt: skip
def test_no_condition_without_a_whole_page_at_its_own_url(one: ResultRecord) -> None:
    _, item, _ = visited(one)
    assert condition_of(item) is None


def test_no_condition_where_the_page_is_not_there_any_more() -> None:
    _, item, _ = visited(record(), record(status=404))
    assert condition_of(item) is None


def test_a_page_gone_three_times_in_a_row_is_not_visited_again() -> None:
    gone = record(status=404)
    _, item, known = visited(gone, gone, record(Outcome.DEAD, status=503))
    assert known.gone == 2, "a site that is down says nothing of its pages"
    _, visit, _ = REVISITS.noted(item, record(status=410), fetched())
    assert after(visit)[0] == -1
    _, again, known = visited(record(), item=item)
    assert known.gone == 0
    assert again.is_paid


def test_what_may_end_workers_is_not_visited_again() -> None:
    error = ErrorInfo(code="owners_lost", message="5 workers ended")
    _, visit, _ = REVISITS.noted(FIRST, record(Outcome.DEAD, status=None, error=error), None)
    assert after(visit)[0] == -1


def test_a_visit_that_is_dropped_changes_nothing() -> None:
    assert REVISITS.noted(FIRST, record(Outcome.DROPPED, status=None), None).visit == b""
    _, item, known = visited(record())
    _, visit, _ = REVISITS.noted(item, record(Outcome.DROPPED, status=None), None)
    assert after(visit) == (60_000, item, known)


@pytest.mark.parametrize("rule", ["max_pages", "max_pages_per_host"])
def test_a_visit_for_which_no_budget_is_left_is_the_last(rule: str) -> None:
    """It was brought back and dropped at each interval, for ever."""
    _, item, known = visited(record(Outcome.REDIRECTED, status=301, location=f"{HOST}/q"))
    dropped = record(Outcome.DROPPED, status=None, rule=rule)
    _, visit, _ = REVISITS.noted(item, dropped, None)
    assert after(visit) == (-1, item, known)


def test_a_link_refused_at_each_visit_counts_once() -> None:
    """Counts of rules grew with the visits, so that they said nothing of the links."""
    item, counted = FIRST, Counter[str]()
    visits: list[dict[str, int]] = [
        {"scope: host": 3}, {"scope: host": 3, "deny: x": 1}, {}, {"scope: host": 5}, {"deny: x": 1}
    ]  # fmt: skip
    for refused in visits:
        noted = REVISITS.noted(item, record(), fetched(), refused)
        counted.update(noted.refused)
        _, item, _ = after(noted.visit)
    assert counted == {"scope: host": 5, "deny: x": 1}
    unread = REVISITS.noted(item, record(Outcome.DEAD, status=503), None)
    _, item, _ = after(unread.visit)
    assert REVISITS.noted(item, record(), fetched(), {"scope: host": 5}).refused == {}


def test_what_an_older_version_knew_of_a_page_is_enough() -> None:
    """Pages wait for weeks: those that an older version has put there are visited by this one."""
    older = msgspec.msgpack.encode([4, 30.0, 0, b"200 x", '"1"', None, None])
    item = FIRST._replace(known=older, is_paid=True)
    noted = REVISITS.noted(item, record(), fetched(), {"scope: host": 2})
    assert (noted.record.visit, noted.refused) == (5, {"scope: host": 2})
