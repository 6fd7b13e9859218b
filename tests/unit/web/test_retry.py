"""Retries: what is tried again, when, and how it ends."""

from __future__ import annotations

import re

import pytest

from common.model.errors import UsageError
from common.model.records import Outcome
from common.web.retry import (
    ERROR_CODES,
    MAX_RETRY_AFTER_S,
    ErrorCode,
    GiveUp,
    RetryAfter,
    RetryPolicy,
    parse_retry_after,
    status_error,
)

_POLICY = RetryPolicy(retries=3)


def _decide(attempt: int, code: str | None = "read_timeout", **more: float) -> RetryAfter | GiveUp:
    options = {"jitter": 0.0, **more}
    return _POLICY.decide(attempt=attempt, error_code=code, status=None, **options)


def test_waits_grow_until_retries_are_used_up() -> None:
    assert [_decide(attempt) for attempt in (1, 2, 3, 4)] == [
        RetryAfter(1.0), RetryAfter(4.0), RetryAfter(16.0), GiveUp(Outcome.DEAD),
    ]  # fmt: skip


def test_jitter_lengthens_a_wait_by_a_quarter_and_the_cap_holds() -> None:
    assert _decide(2, jitter=1.0) == RetryAfter(5.0)
    patient = RetryPolicy(retries=100_000)
    for attempt in (6, 100_000):
        decision = patient.decide(
            attempt=attempt, error_code="read_timeout", status=None, jitter=1.0
        )
        assert decision == RetryAfter(600.0)


@pytest.mark.parametrize("status", [429, 500, 503, 599])
def test_a_bad_status_is_tried_again_then_dead(status: int) -> None:
    first = _POLICY.decide(attempt=1, error_code=None, status=status, jitter=0)
    last = _POLICY.decide(attempt=4, error_code=None, status=status, jitter=0)
    assert (first, last) == (RetryAfter(1.0), GiveUp(Outcome.DEAD))


@pytest.mark.parametrize(
    "code",
    [
        "dns_not_found", "tls_failed", "too_large", "refused_type", "private_address",
        "invalid_location", "too_many_redirects", "bad_encoding", "protocol_error",
    ],
)  # fmt: skip
def test_what_will_not_change_fails_at_once(code: str) -> None:
    assert _decide(1, code) == GiveUp(Outcome.FAILED)


def test_a_url_that_outlived_its_owners_is_dead_at_once() -> None:
    assert _decide(1, "owners_lost") == GiveUp(Outcome.DEAD)


def test_an_unknown_code_is_an_internal_error() -> None:
    assert _decide(1, "martian") == RetryAfter(1.0)


def test_a_page_is_no_failure() -> None:
    for status in (None, 200, 404, 304):
        assert status_error(status) is None
        with pytest.raises(ValueError, match="no failure"):
            _POLICY.decide(attempt=1, error_code=None, status=status, jitter=0)


def test_no_retries_means_one_attempt() -> None:
    policy = RetryPolicy(retries=0)
    decision = policy.decide(attempt=1, error_code="read_timeout", status=None, jitter=0)
    assert decision == GiveUp(Outcome.DEAD)


@pytest.mark.parametrize("bad", [{"retries": -1}, {"base_s": 0.0}, {"factor": 0.5}, {"cap_s": 0.5}])
def test_a_policy_that_is_no_back_off_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="retry policy"):
        RetryPolicy(**{"retries": 3, **bad})  # type: ignore[arg-type]


def test_retry_after_lengthens_a_wait_but_never_shortens_it() -> None:
    """``Retry-After: -5`` set the throttle in the past and cancelled the back-off."""
    assert _decide(1, retry_after_s=30.0) == RetryAfter(30.0)
    assert _decide(2, retry_after_s=0.0) == RetryAfter(4.0)
    assert _decide(1, retry_after_s=1e9) == RetryAfter(MAX_RETRY_AFTER_S)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("1" * 5000, MAX_RETRY_AFTER_S),
        ("Thu, 01 Jan 1970 00:02:00 GMT", 20.0),
        ("Thu, 01 Jan 1970 00:02:00", 20.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_RETRY_AFTER_S),
        ("-5", None),
        ("abc", None),
        ("1e9", None),
        ("\u0663", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_as_hosts_write_it(value: str | None, expected: float | None) -> None:
    assert parse_retry_after(value, now_s=100.0) == expected


def test_every_code_has_its_sentence_and_its_end() -> None:
    assert set(ERROR_CODES) == set(ErrorCode)
    for code, kind in ERROR_CODES.items():
        assert re.fullmatch(r"[a-z0-9_]+", code)
        assert kind.meaning.endswith(".")
        assert kind.outcome in (Outcome.FAILED, Outcome.DEAD)
        assert not kind.is_retried or kind.outcome is Outcome.DEAD
