"""What a failed call means; the words are those of etcd 3.4 to 3.6 and of gRPC."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from common.coord.failures import Code, is_token_invalid, reason, translated
from common.model.errors import (
    CoordUnavailable,
    CrawlerError,
    LeaseLost,
    RefusedError,
    SettingsError,
    UnknownOutcome,
)


class Failure(NamedTuple):
    """A gRPC error's two facts."""

    status: Any
    words: str | None

    def code(self) -> Any:
        return self.status

    def details(self) -> str | None:
        return self.words


NOT_APPLIED = [
    (Code.UNAVAILABLE, "failed to connect to all addresses; last error: UNKNOWN: refused"),
    (Code.UNAVAILABLE, "etcdserver: no leader"),
    (Code.RESOURCE_EXHAUSTED, "etcdserver: too many requests"),
    (Code.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"),
]
UNKNOWN = [
    (Code.UNAVAILABLE, "Socket closed"),
    (Code.UNAVAILABLE, "etcdserver: leader changed"),
    (Code.UNAVAILABLE, "etcdserver: request timed out, possibly due to previous leader failure"),
    (Code.DEADLINE_EXCEEDED, "Deadline Exceeded"),
    (Code.CANCELLED, "CANCELLED"),
    (Code.INTERNAL, "Stream removed"),
    (Code.UNKNOWN, None),
]


@pytest.mark.parametrize(("code", "words"), NOT_APPLIED)
def test_what_was_not_proposed_is_unavailable_for_writes_too(code: Any, words: str) -> None:
    error = translated(Failure(code, words), endpoint="h:1", is_write=True)
    assert type(error) is CoordUnavailable
    assert "h:1" in str(error)


@pytest.mark.parametrize(("code", "words"), UNKNOWN)
def test_whatever_else_leaves_a_write_unknown_and_a_read_unavailable(
    code: Any, words: str | None
) -> None:
    failure = Failure(code, words)
    assert type(translated(failure, endpoint="h:1", is_write=True)) is UnknownOutcome
    assert type(translated(failure, endpoint="h:1", is_write=False)) is CoordUnavailable


@pytest.mark.parametrize(
    ("code", "words", "kind"),
    [
        (Code.NOT_FOUND, "etcdserver: requested lease not found", LeaseLost),
        (Code.PERMISSION_DENIED, "etcdserver: permission denied", RefusedError),
        (Code.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", RefusedError),
        (Code.INVALID_ARGUMENT, "etcdserver: request is too large", RefusedError),
        (Code.INVALID_ARGUMENT, "etcdserver: user name is empty", SettingsError),
        (
            Code.INVALID_ARGUMENT,
            "etcdserver: authentication failed, invalid user ID or password",
            SettingsError,
        ),
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token", SettingsError),
    ],
)
def test_what_etcd_refuses_is_no_outage(code: Any, words: str, kind: type[CrawlerError]) -> None:
    for is_write in (False, True):
        assert type(translated(Failure(code, words), endpoint="h:1", is_write=is_write)) is kind


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Code.UNAUTHENTICATED, "etcdserver: invalid auth token"),
        (Code.UNKNOWN, "auth: revision in header is old"),
        (Code.INVALID_ARGUMENT, "etcdserver: revision of auth store is old"),
    ],
)
def test_a_call_refused_for_its_token_is_one_to_authenticate_for(code: Any, words: str) -> None:
    assert is_token_invalid(Failure(code, words))
    assert not is_token_invalid(Failure(Code.PERMISSION_DENIED, "etcdserver: permission denied"))


def test_a_reason_is_told_without_grpcs_wrapping() -> None:
    words = (
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
        "Failed to connect to remote host: Connection refused"
    )
    assert (
        reason(Failure(Code.UNAVAILABLE, words))
        == "Failed to connect to remote host: Connection refused"
    )
    assert reason(Failure(Code.DEADLINE_EXCEEDED, None)) == "deadline_exceeded"
