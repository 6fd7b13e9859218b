"""What may be taken out of links so that one page is not crawled under many URLs. Off by default.

* ``tracking``: query parameters that only tell where a visitor came from (``utm_*``, ``gclid``).
* ``session``: session ids in path or query (``;jsessionid=``, ``PHPSESSID=`` ...).
* ``order``: query parameters in alphabetical order.

Each step may send the crawler to another page than the link meant: a server may tell these URLs
apart. Seeds are never changed. A cleaned URL is canonical again, and cleaning it changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

_TRACKING: Final = re.compile(
    r"(?:utm_[a-z0-9_]+|gclid|gclsrc|dclid|gbraid|wbraid|fbclid|msclkid|yclid|twclid|ttclid|igshid"
    r"|mc_cid|mc_eid|_hsenc|_hsmi|mkt_tok|vero_id|oly_anon_id|oly_enc_id|s_cid)(?:=|$)",
    re.IGNORECASE,
)
_SESSION: Final = re.compile(
    r"(?:phpsessid|jsessionid|aspsessionid[a-z]*|cfid|cftoken|sessionid|session_id|sess_id"
    r"|zenid|oscsid|xtcsid)(?:=|$)",
    re.IGNORECASE,
)
_PATH_SESSION: Final = re.compile(r";(?:jsessionid|phpsessid|sid)=[^/;?]*+", re.IGNORECASE)


def _without(names: re.Pattern[str], url: str) -> str:
    path, mark, query = url.partition("?")
    if not mark or names.search(query) is None:
        return url
    kept = [pair for pair in query.split("&") if names.match(pair) is None]
    if len(kept) == query.count("&") + 1:
        return url
    return f"{path}?{'&'.join(kept)}" if kept else path


def without_tracking(url: str) -> str:
    """Return a canonical URL without parameters that only track visitors."""
    return _without(_TRACKING, url)


def without_session(url: str) -> str:
    """Return a canonical URL without session ids."""
    if ";" in url:
        path, mark, query = url.partition("?")
        url = _PATH_SESSION.sub("", path) + mark + query
    return _without(_SESSION, url)


def in_order(url: str) -> str:
    """Return a canonical URL with its query parameters in order; equal ones keep theirs."""
    path, mark, query = url.partition("?")
    if "&" not in query:
        return url
    return path + mark + "&".join(sorted(query.split("&")))


STEPS: Final[dict[str, Callable[[str], str]]] = {
    "tracking": without_tracking,
    "session": without_session,
    "order": in_order,
}
"""Every step by the name it is chosen by, in the order in which they are done."""


class Cleaner:
    """The steps of a job."""

    __slots__ = ("_steps",)

    def __init__(self, names: Iterable[str]) -> None:
        chosen = frozenset(names)
        self._steps = tuple(step for name, step in STEPS.items() if name in chosen)

    def __bool__(self) -> bool:
        return bool(self._steps)

    def __call__(self, url: str) -> str:
        """Return a canonical URL as it is to be crawled."""
        if self._steps and ("?" in url or ";" in url):
            for step in self._steps:
                url = step(url)
        return url
