"""What hooks of plugins may give, checked: each returns it in our own types, or raises why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
from multidict import CIMultiDict

from common.runtime.request_secrets import header_fault
from common.web.url import canonicalize

MAX_LINKS: Final = 100_000
"""Of one plugin from one page: an iterator may have no end."""
MAX_EXTRA_BYTES: Final = 65_536
MAX_DEPTH: Final = 32
"""Of objects and arrays in each other: readers of records must not fail on them."""


def rule_of(said: Any) -> str:
    """Return the name of a rule by which a link is refused."""
    if not isinstance(said, str) or not said:
        raise TypeError(f"{_kind(said)} is no name of a rule; give a text, or None")
    return said


def headers_of(given: Any) -> CIMultiDict[str]:
    """Return headers for a request."""
    found: CIMultiDict[str] = CIMultiDict()
    if given is None:
        return found
    if not isinstance(given, Mapping):
        raise TypeError(f"{_kind(given)} is no mapping of headers")
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError("names and values of headers must be texts")
        if (fault := header_fault(name, value)) is not None:
            raise ValueError(fault)
        found[name] = value
    return found


def links_of(given: Any, *, base: str) -> list[str]:
    """Return the canonical URLs of links, without those that have none."""
    if given is None:
        return []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{_kind(given)} is no series of links")
    raws = list(islice(given, MAX_LINKS + 1))
    if len(raws) > MAX_LINKS:
        raise ValueError(f"more than {MAX_LINKS} links")
    if not all(isinstance(raw, str) for raw in raws):
        raise TypeError("links must be texts")
    return [url for raw in dict.fromkeys(raws) if (url := canonicalize(raw, base)) is not None]


def facts_of(given: Any) -> dict[str, Any]:
    """Return what a record is to hold, as it will be read from there."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"{_kind(given)} is no mapping of facts")
    written = msgspec.json.encode(dict(given))
    if len(written) > MAX_EXTRA_BYTES:
        raise ValueError(f"{len(written)} bytes of JSON; at most {MAX_EXTRA_BYTES} are kept")
    found: dict[str, Any] = msgspec.json.decode(written)
    if not _is_within(found, MAX_DEPTH):
        raise ValueError(f"objects and arrays more than {MAX_DEPTH} deep")
    return found


def _is_within(value: Any, levels: int) -> bool:
    """Tell whether no more than ``levels`` objects and arrays are in each other."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_is_within(one, levels - 1) for one in inner)


def _kind(value: Any) -> str:
    """Return what is said of a value: not itself, since it may be a secret."""
    return f"a value of type {type(value).__name__}"
