"""Which links belong to a crawl: scope keys, and the user's allow and deny patterns.

A job keeps a set of scope keys, contributed by its seeds. A link is in scope when one of its own
keys is in that set, so the test is a set look-up wherever the set is kept. Kind ``any`` has no
keys: everything is in scope.

All functions take canonical URLs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Final, Literal

from publicsuffixlist import PublicSuffixList

from common.model.errors import UsageError
from common.web.url import authority_of, path_of

ScopeKind = Literal["host", "domain", "prefix", "any"]

MAX_PREFIXES: Final = 64
"""Directories deeper than this share the scope of the last one counted."""

_IPV4: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")


def scope_keys(url: str, kind: ScopeKind) -> tuple[str, ...]:
    """Return the keys of a URL, one of which must be in the job's scope set.

    * host: host and port, the port only where it is not the scheme's default; the scheme is free.
    * domain: the registrable domain (public suffix list) at any port; addresses are themselves.
    * prefix: every directory the URL lies in, without scheme: ``h/``, ``h/a/``, ``h/a/b/``.
    * any: none.
    """
    if kind == "host":
        return (authority_of(url),)
    if kind == "domain":
        return (domain_of(url),)
    if kind == "prefix":
        return tuple(_directories(url))
    return ()


def domain_of(url: str) -> str:
    """Return the registrable domain (public suffix list) of a URL; addresses are themselves."""
    return _domain_of_authority(authority_of(url))


def seed_scope_key(url: str, kind: ScopeKind) -> str | None:
    """Return what a seed adds to the scope: for ``prefix`` its own directory, None for ``any``."""
    keys = scope_keys(url, kind)
    return keys[-1] if keys else None


class UrlRules:
    """The user's patterns, compiled once; searched in canonical URLs, deny before allow."""

    __slots__ = ("_allow", "_deny")

    def __init__(self, *, allow: Iterable[str] = (), deny: Iterable[str] = ()) -> None:
        """Compile the patterns.

        Raises:
            UsageError: one is no regular expression; the message names the option and the place.
        """
        self._allow = tuple(_compiled(pattern, option="--allow") for pattern in allow)
        self._deny = tuple(_compiled(pattern, option="--deny") for pattern in deny)

    def refusal(self, url: str) -> str | None:
        """Return which rule refuses ``url``, or None where it may be crawled."""
        for pattern in self._deny:
            if pattern.search(url):
                return f"deny: {pattern.pattern}"
        if self._allow and not any(pattern.search(url) for pattern in self._allow):
            return "allow: none matched"
        return None

    def is_denied(self, url: str) -> bool:
        """Tell whether a deny pattern is found in ``url``, whatever is allowed."""
        return any(pattern.search(url) for pattern in self._deny)


def _directories(url: str) -> list[str]:
    authority = authority_of(url)
    path = path_of(url).partition("?")[0]
    found: list[str] = []
    end = path.find("/")
    while end >= 0 and len(found) < MAX_PREFIXES:
        found.append(authority + path[: end + 1])
        end = path.find("/", end + 1)
    return found


@lru_cache(maxsize=16_384)
def _domain_of_authority(authority: str) -> str:
    """Return the registrable domain; an address, or a public suffix alone, stands for itself."""
    if authority.startswith("["):
        return authority[: authority.index("]") + 1]
    host = authority.partition(":")[0].rstrip(".")
    if _IPV4.fullmatch(host):
        return host
    return _public_suffixes().privatesuffix(host) or host


@cache
def _public_suffixes() -> PublicSuffixList:
    """Load the list that comes with the package, once and only where a job asks for domains."""
    return PublicSuffixList()


def _compiled(pattern: str, *, option: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        place = getattr(error, "pos", None)
        at = "" if place is None else f" at position {place}"
        reason = getattr(error, "msg", "too large")
        raise UsageError(
            f"{option}: {pattern!r} is not a regular expression: {reason}{at}; "
            "escape special characters with a backslash"
        ) from error
