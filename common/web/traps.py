"""URLs that a site makes without end: told by their own form, each by a named rule.

* ``path``: a part of the path stands ``MAX_REPEATS`` times in a row and once more, as where a link
  without scheme or slash makes ever longer paths (``/a.test/p/a.test/p/...``).
* ``query``: a query that grows: one ``name=value`` that often, or over ``MAX_PARAMETERS`` of them.
* ``calendar``: a date far from the present in path or query, as behind "next month" links.

``path`` and ``query`` refuse what no person would write, and are on by default; ``calendar`` may
refuse a real page (a product 2150/12), and is not. Very long URLs are no canonical URLs at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from common.web.url import path_of

MAX_REPEATS: Final = 4
MAX_PARAMETERS: Final = 100
YEARS: Final = (1970, 2040)
_LONGEST_GROUP: Final = 8
"""Segments of a part that is looked for."""
_MAX_SEGMENTS: Final = 512

_PATH_DATE: Final = re.compile(r"/([12][0-9]{3})[/-](?:0?[1-9]|1[0-2])(?:[/-]|$)")
_QUERY_DATE: Final = re.compile(
    r"(?:^|[&;])(?:year|yr|y|jahr|annee|date|day|month|start|from)="
    r"([12][0-9]{3})(?:-[0-9]{1,2}(?:-[0-9]{1,2})?)?(?=[&;]|$)",
    re.IGNORECASE,
)


def repeating_path(url: str) -> str | None:
    """Return the rule by which the path of a canonical URL is a trap, or None."""
    path = path_of(url).partition("?")[0]
    if path.count("/") <= MAX_REPEATS:
        return None
    segments = path.split("/", _MAX_SEGMENTS)[1:]
    for size in range(1, min(_LONGEST_GROUP, len(segments) // (MAX_REPEATS + 1)) + 1):
        alike = 0
        for here, there in zip(segments[size:], segments, strict=False):
            alike = alike + 1 if here == there else 0
            if alike == size * MAX_REPEATS:
                return "trap: path repeats itself"
    return None


def growing_query(url: str) -> str | None:
    """Return the rule by which the query of a canonical URL is a trap, or None."""
    query = url.partition("?")[2]
    if query.count("&") < MAX_REPEATS:
        return None
    pairs = query.split("&")
    if len(pairs) > MAX_PARAMETERS:
        return f"trap: query has more than {MAX_PARAMETERS} parameters"
    _, most = Counter(pairs).most_common(1)[0]
    return "trap: query repeats itself" if most > MAX_REPEATS else None


def distant_date(url: str) -> str | None:
    """Return the rule by which a canonical URL is a page of an endless calendar, or None."""
    path, _, query = path_of(url).partition("?")
    years = map(int, (*_PATH_DATE.findall(path), *_QUERY_DATE.findall(query)))
    first, last = YEARS
    if all(first <= year <= last for year in years):
        return None
    return f"trap: date outside {first} to {last}"


TRAPS: Final[dict[str, Callable[[str], str | None]]] = {
    "path": repeating_path,
    "query": growing_query,
    "calendar": distant_date,
}
"""Every rule by the name it is chosen by."""


class Traps:
    """The rules of a job."""

    __slots__ = ("_rules",)

    def __init__(self, names: Iterable[str]) -> None:
        self._rules = tuple(TRAPS[name] for name in names)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def refusal(self, url: str) -> str | None:
        """Return which rule refuses a canonical URL, or None."""
        for rule in self._rules:
            if (refused := rule(url)) is not None:
                return refused
        return None
