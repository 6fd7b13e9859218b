"""When a failed fetch is tried again, and the one table of error codes.

``decide`` is pure: the caller brings the jitter. Codes are part of the contract (``error.code`` of
a result record): codes may be added, none renamed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from common.model.errors import UsageError
from common.model.records import Outcome

MAX_RETRY_AFTER_S: Final = 3600.0
"""A host that asks for more quiet than this gets this much before it is tried again."""
_JITTER: Final = 0.25


class ErrorCode(StrEnum):
    """Why a fetch did not give a page."""

    CONNECT_TIMEOUT = "connect_timeout"
    CONNECT_REFUSED = "connect_refused"
    CONNECT_FAILED = "connect_failed"
    DNS_NOT_FOUND = "dns_not_found"
    DNS_FAILED = "dns_failed"
    TLS_FAILED = "tls_failed"
    READ_TIMEOUT = "read_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    TOO_SLOW = "too_slow"
    CONNECTION_RESET = "connection_reset"
    PROTOCOL_ERROR = "protocol_error"
    TRUNCATED_BODY = "truncated_body"
    BAD_ENCODING = "bad_encoding"
    TOO_LARGE = "too_large"
    REFUSED_TYPE = "refused_type"
    PRIVATE_ADDRESS = "private_address"
    TOO_MANY_REDIRECTS = "too_many_redirects"
    INVALID_LOCATION = "invalid_location"
    ROBOTS_UNAVAILABLE = "robots_unavailable"
    HOST_DOWN = "host_down"
    SERVER_ERROR = "server_error"
    TOO_MANY_REQUESTS = "too_many_requests"
    UNASKED_304 = "unasked_304"
    OWNERS_LOST = "owners_lost"
    PLUGIN_FAILED = "plugin_failed"
    INTERNAL_ERROR = "internal_error"


class ErrorKind(NamedTuple):
    """What an error code stands for."""

    is_retried: bool
    outcome: Outcome
    """How the URL ends when it is not, or no longer, tried again."""
    meaning: str


def _passing(meaning: str) -> ErrorKind:
    return ErrorKind(is_retried=True, outcome=Outcome.DEAD, meaning=meaning)


def _lasting(meaning: str, *, outcome: Outcome = Outcome.FAILED) -> ErrorKind:
    return ErrorKind(is_retried=False, outcome=outcome, meaning=meaning)


ERROR_CODES: Final = MappingProxyType(
    {
        ErrorCode.CONNECT_TIMEOUT: _passing("No connection was made in time."),
        ErrorCode.CONNECT_REFUSED: _passing("The host refused the connection."),
        ErrorCode.CONNECT_FAILED: _passing("The network did not reach the host."),
        ErrorCode.DNS_NOT_FOUND: _lasting("The host name does not exist."),
        ErrorCode.DNS_FAILED: _passing("The name server did not answer, or not for now."),
        ErrorCode.TLS_FAILED: _lasting("The TLS handshake failed or the certificate is not valid."),
        ErrorCode.READ_TIMEOUT: _passing("The host sent no answer in time."),
        ErrorCode.TOTAL_TIMEOUT: _passing("The response was not complete in time."),
        ErrorCode.TOO_SLOW: _passing("The body came more slowly than --min-rate."),
        ErrorCode.CONNECTION_RESET: _passing("The connection ended before the response."),
        ErrorCode.PROTOCOL_ERROR: _lasting("The response is not valid HTTP."),
        ErrorCode.TRUNCATED_BODY: _passing("The body ended before its announced length."),
        ErrorCode.BAD_ENCODING: _lasting("The content coding (gzip, br, ...) cannot be undone."),
        ErrorCode.TOO_LARGE: _lasting("The decoded body is larger than --max-body."),
        ErrorCode.REFUSED_TYPE: _lasting("The content type is not among those of --accept."),
        ErrorCode.PRIVATE_ADDRESS: _lasting(
            "The host has a private, loopback or link-local address; see --allow-private."
        ),
        ErrorCode.TOO_MANY_REDIRECTS: _lasting("The URL redirected to itself too often."),
        ErrorCode.INVALID_LOCATION: _lasting("The redirect leads to no valid http(s) URL."),
        ErrorCode.ROBOTS_UNAVAILABLE: _passing("robots.txt of the host could not be read."),
        ErrorCode.HOST_DOWN: _lasting(
            "The host was silent for minutes, asked again and again; its URLs were given up.",
            outcome=Outcome.DEAD,
        ),
        ErrorCode.SERVER_ERROR: _passing("The host answered with a 5xx status."),
        ErrorCode.TOO_MANY_REQUESTS: _passing("The host answered 429: it is asked too often."),
        ErrorCode.UNASKED_304: _passing(
            "The host answered 304 (not modified) to a request that did not ask for that."
        ),
        ErrorCode.OWNERS_LOST: _lasting(
            "Several workers ended while they fetched this URL, the last one alone with it.",
            outcome=Outcome.DEAD,
        ),
        ErrorCode.PLUGIN_FAILED: _lasting(
            "A plugin of the job failed on this page; 'crawlctl dead --retry' tries it again.",
            outcome=Outcome.DEAD,
        ),
        ErrorCode.INTERNAL_ERROR: _passing("crawlctl failed on this URL; its log says more."),
    }
)


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Try again after a while."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again; the URL ends so."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off: 1 s, 4 s, 16 s ... up to ``cap_s``."""

    retries: int
    """How often a URL is tried again after its first attempt."""
    base_s: float = 1.0
    factor: float = 4.0
    cap_s: float = 600.0

    def __post_init__(self) -> None:
        """Refuse what is no back-off.

        Raises:
            UsageError: a value is out of range.
        """
        if self.retries < 0 or self.base_s <= 0 or self.factor < 1 or self.cap_s < self.base_s:
            raise UsageError(
                f"retry policy {self}: give retries of 0 or more, a base above 0, "
                "a factor of at least 1 and a cap not below the base"
            )

    def decide(
        self,
        *,
        attempt: int,
        error_code: str | None,
        status: int | None,
        jitter: float,
        retry_after_s: float | None = None,
    ) -> RetryAfter | GiveUp:
        """Decide about a fetch that failed.

        Args:
            attempt: The attempt that failed, from 1.
            error_code: One of ``ErrorCode``; an unknown one counts as ``internal_error``.
            status: HTTP status, asked where there is no error code.
            jitter: From 0 to 1, drawn by the caller; lengthens the wait by up to a quarter.
            retry_after_s: What the host asked for, see ``parse_retry_after``; lengthens the wait,
                but never beyond ``MAX_RETRY_AFTER_S``.

        Raises:
            ValueError: nothing failed; the caller has a page.
        """
        code = status_error(status) if error_code is None else _known(error_code)
        if code is None:
            raise ValueError(f"status {status} without error code is no failure")
        kind = ERROR_CODES[code]
        if not kind.is_retried or attempt > self.retries:
            return GiveUp(kind.outcome)
        delay_s = self._backoff_s(attempt) * (1 + _JITTER * jitter)
        asked_s = min(retry_after_s or 0.0, MAX_RETRY_AFTER_S)
        return RetryAfter(max(min(delay_s, self.cap_s), asked_s))

    def _backoff_s(self, attempt: int) -> float:
        try:
            return min(self.base_s * self.factor ** (attempt - 1), self.cap_s)
        except OverflowError:
            return self.cap_s


def status_error(status: int | None) -> ErrorCode | None:
    """Return the error a status stands for: 429 and 5xx; None for every other (a result)."""
    if status == 429:
        return ErrorCode.TOO_MANY_REQUESTS
    if status is not None and 500 <= status < 600:
        return ErrorCode.SERVER_ERROR
    return None


def parse_retry_after(value: str | None, *, now_s: float) -> float | None:
    """Return the seconds a Retry-After field asks for, at most ``MAX_RETRY_AFTER_S``.

    None where the field is missing or makes no sense (negative, no number and no date).

    Args:
        value: The field as text.
        now_s: The time of the response, as Unix time; the field may hold a date.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), MAX_RETRY_AFTER_S)
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        delay_s = moment.timestamp() - now_s
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(delay_s, 0.0), MAX_RETRY_AFTER_S) if math.isfinite(delay_s) else None


def _known(error_code: str) -> ErrorCode:
    try:
        return ErrorCode(error_code)
    except ValueError:
        return ErrorCode.INTERNAL_ERROR
