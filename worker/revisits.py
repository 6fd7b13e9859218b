"""Visits after the first, for a job with ``--recrawl``: what is asked, what came of it, when next.

The server is asked whether the page has changed (``If-None-Match``, ``If-Modified-Since``) where
the last answer was a whole page, status 200, at its own URL, and came with something to ask by. A
visit without an answer (dead, failed, denied) leaves what is known as it was: the page is asked for
again after the same interval. Links refused count once a page, not at each visit: a visit adds what
a rule refuses beyond the visits before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from msgspec.structs import asdict, replace

from common.frontier import items
from common.frontier.items import Item
from common.frontier.settling import NOTHING
from common.frontier.visits import Known, Page, decode_known, encode_known, next_visit
from common.model.job import BUDGETS, JobSpec
from common.model.records import Outcome, ResultRecord
from common.web.recrawl import GONE, GONE_VISITS, Schedule, entity_tag, http_date
from common.web.retry import ErrorCode
from worker.fetched import Condition, Fetched
from worker.reading import fields

_DIGEST_BYTES = 16
_PAGES = (Outcome.FETCHED, Outcome.NOT_MODIFIED)


class Noted(NamedTuple):
    """A visit that has ended."""

    record: ResultRecord
    visit: bytes
    """What is to come of it: ``Finished.visit``."""
    refused: Mapping[str, int]
    """Links to be counted as refused, by rule."""


class _Validators(NamedTuple):
    """What a server can be asked by: all that is in ``Known``."""

    etag: str | None = None
    modified: str | None = None
    page: Page | None = None


def condition_of(item: Item) -> Condition | None:
    """Return on which condition a page that was visited before is wanted, if on any."""
    known = decode_known(item.known)
    if known.page is None:
        return None
    asked = {"If-None-Match": known.etag, "If-Modified-Since": known.modified}
    headers = {name: value for name, value in asked.items() if value is not None}
    return Condition(headers, known.page.recorded_at)


class Revisits:
    """When the pages of a job are visited again."""

    def __init__(self, spec: JobSpec) -> None:
        assert spec.recrawl is not None
        self._schedule = Schedule(spec.recrawl, *spec.recrawl_bounds)

    def noted(
        self,
        item: Item,
        record: ResultRecord,
        fetched: Fetched | None,
        refused: Mapping[str, int] = NOTHING,
    ) -> Noted:
        """Return the record of a visit completed, and what is to come of it.

        Args:
            item: the page, with what was known before.
            record: of this visit.
            fetched: the answer, where there was one.
            refused: links of the page that rules refuse, by rule.
        """
        known = decode_known(item.known) if item.known else None
        if record.outcome is Outcome.DROPPED:
            return self._dropped(item, record, known)
        visits = 1 if known is None else known.visits + 1
        answer = _answer(record, known)
        before = b"" if known is None else known.answer
        changed = answer != before if answer and before else None
        interval_s = self._schedule.interval_s(
            None if known is None else known.interval_s, changed=changed
        )
        if record.outcome is Outcome.NOT_MODIFIED and known is not None and known.page is not None:
            record = replace(record, **_of_page(known.page))
        record = replace(record, visit=visits, changed=changed)
        validators = _validators(record, fetched, known)
        counted = {} if known is None else known.refused
        beyond = _beyond(refused, counted)
        now = Known(
            visits=visits,
            interval_s=interval_s,
            gone=_gone(record, known),
            answer=answer or before,
            etag=validators.etag,
            modified=validators.modified,
            page=validators.page,
            refused=counted | {crc32(rule.encode()): refused[rule] for rule in beyond},
        )
        is_paid = item.is_paid or record.outcome in _PAGES
        visit = self._next(item, now, is_paid=is_paid, is_last=_is_last(record, now))
        return Noted(record, visit, beyond)

    def _dropped(self, item: Item, record: ResultRecord, known: Known | None) -> Noted:
        """A visit that is dropped leaves everything as it was; a first one has no other.

        No budget comes back once it is used up: a page that has none of it would be dropped at each
        visit, for ever.
        """
        if known is None:
            return Noted(record, b"", NOTHING)
        record = replace(record, visit=known.visits + 1)
        is_last = record.rule in BUDGETS
        visit = self._next(item, known, is_paid=item.is_paid, is_last=is_last)
        return Noted(record, visit, NOTHING)

    def _next(self, item: Item, known: Known, *, is_paid: bool, is_last: bool) -> bytes:
        again = item._replace(attempt=1, owners=0, known=encode_known(known), is_paid=is_paid)
        after_ms = -1 if is_last else int(known.interval_s * 1000)
        return next_visit(item.url, after_ms=after_ms, item=items.encode(again))


def _beyond(refused: Mapping[str, int], counted: Mapping[int, int]) -> dict[str, int]:
    """Return the links that rules refuse beyond those that were counted at earlier visits."""
    more = {rule: links - counted.get(crc32(rule.encode()), 0) for rule, links in refused.items()}
    return {rule: links for rule, links in more.items() if links > 0}


def _answer(record: ResultRecord, known: Known | None) -> bytes:
    """Return by what an answer is told from another; empty where there was none."""
    match record.outcome:
        case Outcome.NOT_MODIFIED:
            return b"" if known is None else known.answer
        case Outcome.REDIRECTED:
            said = hashlib.sha256((record.location or "").encode()).digest()
        case Outcome.FETCHED if record.status in GONE:  # error pages often differ each time
            said = b""
        case Outcome.FETCHED:
            said = bytes.fromhex(record.sha256 or "")
        case _:
            return b""
    return b"%d " % (record.status or 0) + said[:_DIGEST_BYTES]


def _gone(record: ResultRecord, known: Known | None) -> int:
    """Return how many visits in a row, this one included, have found the page gone."""
    before = 0 if known is None else known.gone
    if record.outcome in (Outcome.FETCHED, Outcome.NOT_MODIFIED, Outcome.REDIRECTED):
        return before + 1 if record.status in GONE else 0
    return before


def _is_last(record: ResultRecord, known: Known) -> bool:
    """Tell whether the page is not visited again: it is gone, or may be what ends workers."""
    is_harmful = record.error is not None and record.error.code == ErrorCode.OWNERS_LOST
    return known.gone >= GONE_VISITS or is_harmful


def _validators(record: ResultRecord, fetched: Fetched | None, known: Known | None) -> _Validators:
    """Return what the server can be asked by the next time."""
    etag = modified = None
    if record.outcome in (Outcome.FETCHED, Outcome.REDIRECTED):
        page = _page(record, fetched)
    elif known is not None:
        etag, modified, page = known.etag, known.modified, known.page
    else:
        page = None
    if page is not None and fetched is not None and record.outcome in _PAGES:
        etag = entity_tag(fields(fetched, "ETag")) or etag
        modified = http_date(fields(fetched, "Last-Modified")) or modified
    is_of_use = page is not None and (etag is not None or modified is not None)
    return _Validators(etag, modified, page) if is_of_use else _Validators()


def _page(record: ResultRecord, fetched: Fetched | None) -> Page | None:
    """Return what is to be known of a page; None where a 304 could not stand for it."""
    is_whole = record.status == 200 and not record.truncated and record.final_url == record.url
    if fetched is None or not is_whole or record.outcome is not Outcome.FETCHED:
        return None
    kept = {name: getattr(record, name) for name in Page.__struct_fields__ if name != "recorded_at"}
    return Page(**kept, recorded_at=fetched.recorded_at)


def _of_page(page: Page) -> dict[str, object]:
    """Return the fields of a record that a 304 leaves as they were."""
    kept = asdict(page)
    del kept["recorded_at"]
    return kept
