"""How a fetch ended, and the condition it may come with: what the rest of a worker sees of one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from common.model.records import ErrorInfo, WarcRef
from common.web.retry import parse_retry_after


class Condition(NamedTuple):
    """On which alone the page is wanted: that it is not as it was (RFC 9110, 13)."""

    headers: Mapping[str, str]
    recorded_at: str | None = None
    """``WARC-Date`` of the response it was learnt from."""


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """How a fetch ended."""

    url: str
    final_url: str
    """Last URL requested; differs from ``url`` only after a bounce."""
    status: int | None = None
    """None where no response header arrived."""
    reason: str | None = None
    headers: Mapping[str, str] | None = None
    """Names in any case, repeated fields in ``items()``; bytes that are no UTF-8 are surrogates."""
    content_type: str | None = None
    """The field as sent, with its parameters."""
    location: str | None = None
    """Absolute target of a redirect, of any scheme, fragment included."""
    body: bytes = b""
    """Decoded; where it ended early, what had arrived; after other errors empty."""
    truncated: bool = False
    """The body is not all of it: ended early, or cut on request."""
    ip: str | None = None
    """Address connected to; None through a proxy."""
    error: ErrorInfo | None = None
    had_no_room: bool = False
    """The body was left unread, since this process holds too much already."""
    abandoned: bool = False
    """``wait_before_hop`` said no: a further request was due and not sent."""
    hops: int = 0
    """Redirects followed."""
    warc: WarcRef | None = None
    """Where the last response is archived."""
    recorded_at: str | None = None
    """Its ``WARC-Date`` there."""
    is_conditional: bool = False
    """The last request was: it asked for the page only if that had changed."""
    started_at: float
    """When the last request was started (monotonic)."""
    ended_at: float
    """When its last byte had arrived, or it had failed (monotonic)."""

    @property
    def elapsed_ms(self) -> int:
        """From the start of the last request to its end."""
        return round((self.ended_at - self.started_at) * 1000)

    @property
    def retry_after_s(self) -> float:
        """For how long the host asks to be left alone (RFC 9110, 10.2.3); 0 = not at all."""
        if self.headers is None or self.status not in (429, 503):
            return 0.0
        return parse_retry_after(self.headers.get("Retry-After"), now_s=time.time()) or 0.0
