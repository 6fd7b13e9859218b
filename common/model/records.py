"""The result record: one per finished URL, exported as one JSON object.

Field names are part of the contract (``crawlctl schema result``): some may be added, none renamed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Outcome(StrEnum):
    """How a URL ended. Each value is also the name of the counter it moves."""

    FETCHED = "fetched"
    NOT_MODIFIED = "not_modified"
    REDIRECTED = "redirected"
    DENIED = "denied"
    FAILED = "failed"
    DEAD = "dead"
    DROPPED = "dropped"


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Why a URL failed or died."""

    code: str
    """Stable, lower-case, underscores: ``connect_timeout``, ``dns_not_found``, ``too_large`` ..."""
    message: str


class WarcRef(msgspec.Struct, frozen=True, kw_only=True):
    """Where the response record of a body lies."""

    file: str
    offset: int
    """Bytes from the start of the file."""
    length: int
    """Bytes of the (compressed) record."""


class ResultRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one finished URL."""

    url: str
    """Canonical URL: its identity."""
    final_url: str
    """Last URL requested for it; differs only after a bounce back to the same canonical URL."""
    status: int | None
    """HTTP status, or null where no response was received."""
    outcome: Outcome
    location: str | None = None
    """Absolute redirect target of a ``redirected`` URL."""
    depth: int
    """Links from a seed at first admission."""
    referrer: str | None
    """The page it was first found on; null for a seed."""
    fetched_at: str
    """RFC 3339 UTC, when it was finished."""
    elapsed_ms: int = 0
    """From the start of the request to the last byte of the body."""
    ip: str | None = None
    """Address connected to."""
    content_type: str | None = None
    encoding: str | None = None
    """Character encoding the body was read with (WHATWG name)."""
    bytes: int = 0
    """Length of the decoded body."""
    sha256: str | None = None
    """Hex digest of the decoded body."""
    truncated: bool = False
    title: str | None = None
    robots: tuple[str, ...] = ()
    """What X-Robots-Tag and robots meta elements say: noarchive, nofollow, noindex."""
    canonical: str | None = None
    """Canonical URL that the page names for itself (``link rel=canonical``)."""
    simhash: str | None = None
    """64-bit SimHash of the text, 16 hex digits; with ``--simhash``."""
    lastmod: str | None = None
    """When it changed last, by the sitemap it was found in, as written there."""
    priority: float | None = None
    """From 0 to 1, by the sitemap it was found in."""
    outlinks: int = 0
    """Distinct links found, before scope."""
    attempt: int = 1
    """1 for the first try of this visit."""
    visit: int = 1
    """1 for the first; with ``--recrawl`` there are more."""
    changed: bool | None = None
    """Whether it was found changed since the last visit that got an answer; null where there was no
    such visit, or this one got none."""
    worker: str
    token: int
    """Fencing token under which it was committed."""
    rule: str | None = None
    """What denied or dropped it."""
    error: ErrorInfo | None = None
    warc: WarcRef | None = None
    extra: dict[str, dict[str, Any]] | None = None
    """What the job's plugins add, by their names."""
