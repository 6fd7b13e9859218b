"""When a page is visited again, and what may be sent back to its server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.web.recrawl import Schedule, entity_tag, http_date

DAY = 86_400.0


def test_the_first_interval_is_the_one_asked_for() -> None:
    assert Schedule(DAY, DAY / 8, DAY * 8).interval_s(None, changed=None) == DAY


@pytest.mark.parametrize(("changed", "after"), [(True, DAY / 2), (False, DAY * 2), (None, DAY)])
def test_it_is_halved_where_a_page_changed_and_doubled_where_not(
    changed: bool | None, after: float
) -> None:
    assert Schedule(DAY, 1, 100 * DAY).interval_s(DAY, changed=changed) == after


@given(st.lists(st.sampled_from([True, False, None]), max_size=30))
def test_it_stays_between_its_bounds(found: list[bool | None]) -> None:
    schedule = Schedule(60.0, 20.0, 600.0)
    interval_s = schedule.interval_s(None, changed=None)
    for changed in found:
        interval_s = schedule.interval_s(interval_s, changed=changed)
        assert 20.0 <= interval_s <= 600.0


@pytest.mark.parametrize(
    "tag", ['"a"', 'W/"a,b*"', '""', "unquoted-5f3a", '"grüße"', '"' + 500 * "x" + '"']
)
def test_a_tag_goes_back_as_it_came(tag: str) -> None:
    assert entity_tag([tag]) == tag
    assert entity_tag([f" {tag}\t"]) == tag


@pytest.mark.parametrize(
    "tag",
    [
        "*", "", "a,b", "a b", '"a" "b"', '"a', '"a\r\nX: y"', '"a\x00"', '"\udcff"',
        "W/*", '"' + 600 * "x" + '"', '"a", "b"',
    ],
)  # fmt: skip
def test_a_tag_that_would_say_something_else_is_refused(tag: str) -> None:
    assert entity_tag([tag]) is None


def test_what_came_twice_or_not_at_all_is_not_sent_back() -> None:
    assert entity_tag([]) is None
    assert entity_tag(['"a"', '"b"']) is None
    assert http_date([]) is None
    assert http_date(["Mon, 30 Nov 2026 10:00:00 GMT"] * 2) is None


@pytest.mark.parametrize(
    ("date", "is_sent"),
    [
        ("Mon, 30 Nov 2026 10:00:00 GMT", True), ("Monday, 30-Nov-26 10:00:00 GMT", True),
        ("yesterday", False), ("", False), ("0", False),
        ("Mon, 30 Nov 2026 10:00:00 GMT\r\nX: y", False),
        ("Mön, 30 Nov 2026 10:00:00 GMT", False), (70 * "1", False),
    ],
)  # fmt: skip
def test_a_date_goes_back_as_it_came_where_it_is_one(date: str, is_sent: bool) -> None:
    assert http_date([date]) == (date if is_sent else None)
