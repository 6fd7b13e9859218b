"""Which URLs the references of a page mean.

A :class:`LinkResolver` remembers what a reference means in its directory, so that the navigation
which repeats on every page of a site costs one dict look-up a link.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from common.web import charset
from common.web.url import Base, canonicalize, host_key

MEMO_ENTRIES: Final = 65_536
_MAX_REMEMBERED_CHARS: Final = 512
_ENTRIES_PER_TABLE: Final = 8
"""What an empty table is counted as: sites of one page a directory must not grow it unseen."""
_OWN: Final = ""
"""Stands in a look-up for a reference whose meaning is the page's own (``?x``): never a URL."""
_CONTROLS_AND_SPACE: Final = "".join(map(chr, range(0x21)))


class LinkResolver:
    """Canonical forms of references, remembered by the directory they were found in.

    When ``max_entries`` are held nothing is added, and the next page starts afresh: refilling costs
    less than keeping an order of use.
    """

    def __init__(self, *, max_entries: int = MEMO_ENTRIES) -> None:
        self._max_entries = max_entries
        self._tables: dict[str, _Table] = {}
        self._origins: dict[str, dict[str, str | None]] = {}
        self._everywhere: dict[str, str | None] = {}
        self.entries = 0
        """How many are held."""

    def resolve(self, references: Iterable[str], *, base: str) -> list[str]:
        """Return the distinct canonical URLs of ``references``, in order.

        Args:
            references: Raw hrefs, distinct.
            base: What they are relative to; absolute.
        """
        if not base.startswith(("http://", "https://")):
            urls = dict.fromkeys(canonicalize(raw, base) for raw in references)
        else:
            if self.entries >= self._max_entries:
                self._forget()
            table = self._directory(base)
            urls = dict.fromkeys(map(table.__getitem__, references))
            if _OWN in urls:
                urls = dict.fromkeys(
                    canonicalize(raw, base) if (url := table[raw]) == _OWN else url
                    for raw in references
                )
        return list(filter(None, urls))

    def _forget(self) -> None:
        self._tables, self._origins, self._everywhere, self.entries = {}, {}, {}, 0

    def _directory(self, base: str) -> _Table:
        path, _, _ = base.partition("?")
        directory = path[: path.rfind("/") + 1]
        table = self._tables.get(directory)
        if table is None:
            origin = self._origins.setdefault(host_key(directory), {})
            table = _Table(self, directory, origin=origin, everywhere=self._everywhere)
            self._tables[directory] = table
            self.entries += _ENTRIES_PER_TABLE
        return table

    def remember(self, known: dict[str, str | None], raw: str, url: str | None) -> None:
        """Add one entry to a table while there is room; very long references are not kept."""
        if self.entries < self._max_entries and len(raw) <= _MAX_REMEMBERED_CHARS:
            self.entries += 1
            known[raw] = url


class _Table(dict[str, str | None]):
    """What references mean in one directory, filled as they are asked for.

    A reference that begins with a slash means the same all over its origin, and one with scheme and
    host the same everywhere: these are looked up there before they are parsed.
    """

    __slots__ = ("_base", "_everywhere", "_origin", "_resolver")

    def __init__(
        self,
        resolver: LinkResolver,
        directory: str,
        *,
        origin: dict[str, str | None],
        everywhere: dict[str, str | None],
    ) -> None:
        super().__init__()
        self._resolver = resolver
        self._base = Base(directory)
        self._origin = origin
        self._everywhere = everywhere

    def __missing__(self, raw: str) -> str | None:
        """Return what ``raw`` means, ``_OWN`` if that depends on more than the directory."""
        wider: dict[str, str | None] | None = None
        if raw.startswith(("http://", "https://")):
            wider = self._everywhere
        elif raw.startswith("/"):
            wider = self._origin
        elif raw.strip(_CONTROLS_AND_SPACE)[:1] in ("", "?", "#"):
            return _OWN
        if wider is not None and raw in wider:
            url = wider[raw]
        else:
            url = self._base.resolve(raw)
            if wider is not None:
                self._resolver.remember(wider, raw, url)
        self._resolver.remember(self, raw, url)
        return url


def with_query_in(raw: str, encoding: charset.Charset) -> str:
    """Percent-encode the query of a reference in the encoding of its page, as browsers do."""
    if raw.isascii() or "?" not in raw or encoding.name.startswith("utf-"):
        return raw
    before, hash_mark, fragment = raw.partition("#")
    path, mark, query = before.partition("?")
    query = "".join(char if char < "\x80" else _octets(char, encoding) for char in query)
    return f"{path}{mark}{query}{hash_mark}{fragment}"


def _octets(char: str, encoding: charset.Charset) -> str:
    """Return a character percent-encoded; one that the encoding lacks as a numeric reference."""
    try:
        encoded = char.encode(encoding.codec)
    except UnicodeEncodeError:
        return f"%26%23{ord(char)}%3B"
    return "".join(f"%{octet:02X}" for octet in encoded)
