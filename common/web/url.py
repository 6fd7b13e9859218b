"""Canonical URLs: the identity of a page everywhere in crawlctl.

The form is what the WHATWG URL Standard serialises (parsed by ada), for http and https only, and
then

* without fragment and without user name and password,
* with percent-triples in upper case and those of unreserved characters decoded (RFC 3986, 6.2.2),
  unless the URL also holds a ``%`` that begins no triple: decoding beside one could make another.

Nothing else is folded: an empty query, a trailing slash, the order of parameters, doubled slashes
and a trailing dot of the host all keep two URLs apart, since servers may tell them apart.

``canonicalize`` is idempotent and never raises. The accessors below it expect a canonical URL and
do not check.
"""

from __future__ import annotations

import re
from typing import Final

import can_ada

from common.model.errors import UsageError
from common.model.ids import HostKey

MAX_URL_BYTES: Final = 8192
"""Longest canonical URL kept (it is ASCII); common servers take no longer request line."""

_CRAWLABLE: Final = ("http://", "https://")
_BARE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_TRIPLE: Final = re.compile(r"%[0-9A-Fa-f]{2}")
_TO_FOLD: Final = re.compile(
    "%(?:[a-f][0-9A-Fa-f]|[0-9A-F][a-f]|2[DE]|3[0-9]|4[1-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])"
)
"""Triples whose normal form differs: a lower-case digit, or an unreserved character."""
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_FOLDED: Final = {
    f"%{text}": char if (char := chr(int(text, 16))) in _UNRESERVED else f"%{text.upper()}"
    for text in (
        high + low for high in "0123456789ABCDEFabcdef" for low in "0123456789ABCDEFabcdef"
    )
}
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?![0-9]+(?:[/?#]|$))")
"""A scheme, and not a host name before a port number."""


def canonicalize(raw: str, base: str | None = None) -> str | None:
    """Return the canonical form of ``raw``, resolved against ``base``, or None.

    None means: not a valid URL, neither http nor https, or longer than ``MAX_URL_BYTES``. Any
    string may be given: lone surrogates are read as U+FFFD, as browsers do.
    """
    try:
        parsed = can_ada.parse(raw) if base is None else can_ada.parse(base) + raw
    except ValueError:
        return None
    except TypeError:  # lone surrogates cannot be passed on as UTF-8
        return canonicalize(_scalar_values(raw), None if base is None else _scalar_values(base))
    return _finish(parsed.href)


class Base:
    """A base URL parsed once, for resolving many references against it."""

    __slots__ = ("_parsed",)

    def __init__(self, url: str) -> None:
        """Parse ``url``.

        Raises:
            ValueError: it is not an absolute URL; canonical URLs always are.
        """
        self._parsed = can_ada.parse(url)

    def resolve(self, raw: str) -> str | None:
        """Return what ``canonicalize(raw, base)`` would."""
        try:
            href = (self._parsed + raw).href
        except ValueError:
            return None
        except TypeError:
            return self.resolve(_scalar_values(raw))
        return _finish(href)


def document_base(page_url: str, base_href: str) -> str:
    """Return what references on a page are resolved against, given its first base element.

    An invalid one counts for nothing, as does one that cannot be a base (data, javascript).
    """
    try:
        href: str = (can_ada.parse(page_url) + _scalar_values(base_href)).href
    except ValueError:
        return page_url
    return page_url if href.startswith(("data:", "javascript:")) else href.partition("#")[0]


def host_key(url: str) -> HostKey:
    """Return scheme and authority of a canonical URL: ``http://example.org:8080``."""
    return HostKey(url[: url.find("/", 8)])


def authority_of(url: str) -> str:
    """Return ``host`` or, where the port is not the scheme's default, ``host:port``."""
    return url[8 if url[4] == "s" else 7 : url.find("/", 8)]


def path_of(url: str) -> str:
    """Return path and query of a canonical URL; begins with a slash."""
    return url[url.find("/", 8) :]


def lacks_scheme(seed: str) -> bool:
    """Tell whether a seed as a person writes it leaves the scheme to be chosen."""
    stripped = seed.strip()
    return not stripped.startswith(_CRAWLABLE) and _SCHEME.match(stripped) is None


def parse_seed(text: str) -> str:
    """Return the canonical URL of a seed as a person writes it; without scheme, http is meant.

    Raises:
        UsageError: it cannot be crawled; the message says why.
    """
    seed = text.strip()
    if seed.startswith(_CRAWLABLE) and (url := canonicalize(seed)) is not None:
        return url
    scheme = _SCHEME.match(seed)
    if scheme is not None and scheme[1].lower() not in ("http", "https"):
        raise UsageError(
            f"seed {_shown(text)}: scheme {scheme[1]!r} cannot be crawled; give http or https"
        )
    if scheme is None:
        seed = "http:" + seed if seed.startswith("//") else "http://" + seed
    if scheme is None and (not text.strip() or re.match("http://[/?#]", seed)):
        raise UsageError(f"seed {_shown(text)}: no host name; write it as http://host/path")
    url = canonicalize(seed)
    if url is not None:
        return url
    if len(seed) > MAX_URL_BYTES:
        raise UsageError(f"seed {_shown(text)}: longer than {MAX_URL_BYTES} bytes; shorten it")
    raise UsageError(f"seed {_shown(text)}: not a valid URL; write it as http://host/path")


def header_reference(value: bytes) -> str:
    """Return a URL reference out of a header field (Location, Link) as text.

    Bytes beyond ASCII are percent-encoded as they are, whatever encoding the server had in mind.
    """
    return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in value)


def _finish(href: str) -> str | None:
    """Turn a serialised URL into the canonical form."""
    if not href.startswith(_CRAWLABLE):
        return None
    if "#" in href:
        href = href[: href.index("#")]
    if "@" in href:
        href = _without_userinfo(href)
    if "%" in href and _TO_FOLD.search(href):
        href = _fold_triples(href)
    return href if len(href) <= MAX_URL_BYTES else None


def _without_userinfo(href: str) -> str:
    begin = href.index("//") + 2
    at = href.rfind("@", begin, href.find("/", begin))
    return href if at < 0 else href[:begin] + href[at + 1 :]


def _fold_triples(href: str) -> str:
    if _BARE_PERCENT.search(href):
        return _TRIPLE.sub(lambda triple: triple[0].upper(), href)
    return _TRIPLE.sub(lambda triple: _FOLDED[triple[0]], href)


def _scalar_values(text: str) -> str:
    """Replace lone surrogates by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _shown(text: str) -> str:
    """Return a seed as it can stand in a message: quoted, and cut where it is long."""
    return repr(text if len(text) <= 80 else text[:80] + "...")
