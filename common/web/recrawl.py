"""When a page is visited again, and what may be asked of its server then (RFC 9110, 13).

Pure rules: the caller brings what it found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final

GONE: Final = frozenset((404, 410))
GONE_VISITS: Final = 3
"""After so many visits in a row that found it gone, a page is not visited again."""
_STEP: Final = 2.0
_MAX_TAG_CHARS: Final = 512
_MAX_DATE_CHARS: Final = 64

_QUOTED: Final = re.compile(r'(?:W/)?"[\x21\x23-\x7e\x80-\U0010ffff]*"')
_BARE: Final = re.compile(r"[\x21\x23-\x29\x2b\x2d-\x7e]+")
"""Without the quotes, as some send it: nothing that could be read as a list or as ``*``, any."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The interval of each page: shorter where it is found changed, longer where not."""

    every_s: float
    """The first one."""
    least_s: float
    most_s: float

    def interval_s(self, before_s: float | None, *, changed: bool | None) -> float:
        """Return the seconds until the next visit.

        Args:
            before_s: the interval that led to this visit; None at the first.
            changed: what was found; None where the visit tells nothing, which leaves the interval
                as it was: a site that is down is neither lively nor at rest.
        """
        if before_s is None:
            return self.every_s
        if changed is None:
            return before_s
        wanted_s = before_s / _STEP if changed else before_s * _STEP
        return min(max(wanted_s, self.least_s), self.most_s)


def entity_tag(fields: list[str]) -> str | None:
    """Return what may be sent back of the ETag fields of a response, as it came; None for nothing.

    Refused are tags that came twice, that are overlong, that would say something else in a list of
    tags, and those that hold bytes that are no UTF-8 (they could not be sent as they came).
    """
    if len(fields) != 1 or len(fields[0]) > _MAX_TAG_CHARS:
        return None
    tag = fields[0].strip(" \t")
    if not (_QUOTED.fullmatch(tag) or _BARE.fullmatch(tag)):
        return None
    try:
        tag.encode()
    except UnicodeEncodeError:
        return None
    return tag


def http_date(fields: list[str]) -> str | None:
    """Return what may be sent back of the Last-Modified fields of a response, as it came."""
    if len(fields) != 1 or len(fields[0]) > _MAX_DATE_CHARS:
        return None
    date = fields[0].strip(" \t")
    if not (date.isascii() and date.isprintable()):
        return None
    try:
        parsedate_to_datetime(date)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date
