"""Reads the text of a sitemap, piece by piece: a scanner for tags, not an XML parser.

It needs no well-formed input, keeps what came before a fault, and has nothing to expand: of
entities only the five of XML and character numbers are read, declarations are skipped.
"""

from __future__ import annotations

import codecs
import math
import re
from typing import Final, NamedTuple

from common.web import charset
from common.web.url import MAX_URL_BYTES

MAX_ENTRIES: Final = 50_000
"""Pages a file; what the protocol allows."""
MAX_CHILDREN: Final = 1_000
"""Sitemaps an index may name."""
_MAX_STEPS: Final = 2_000_000
"""Tags and other marks looked at: forty for each page a file may name; some seconds at most."""
_MAX_TAG_CHARS: Final = 65_536
_MAX_DEPTH: Final = 64

_ROOTS: Final = {
    "urlset": "urlset", "sitemapindex": "index", "rss": "rss", "rdf": "rss", "feed": "atom",
}  # fmt: skip
_ENTRY_OF: Final = {"urlset": "url", "index": "sitemap", "rss": "item", "atom": "entry"}
_LINK_OF: Final = {"urlset": "loc", "index": "loc", "rss": "link", "atom": "link"}
_NOTES: Final = frozenset(("lastmod", "priority"))

_SKIPPED: Final = (("<!--", "-->"), ("<?", "?>"))
_CDATA: Final = "<![CDATA["
_NAME: Final = re.compile(r"/?\s*(?:[^\s:/>=]+:)?([^\s:/>=]+)")
_ATTRIBUTE: Final = re.compile(
    r"""(?<![^\s"'/])([^\s=/"']++)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))"""
)
"""Names begin after a blank or quote only: a long run without any costs one pass."""
_REFERENCE: Final = re.compile(r"&(#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9_.-]{0,40});")
_ENTITIES: Final = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}


class Entry(NamedTuple):
    """A page, or a sitemap of an index."""

    url: str
    """As written, entities undone: not resolved, not checked."""
    lastmod: str | None = None
    priority: float | None = None
    """From 0 to 1."""


class Sitemap(NamedTuple):
    """What a file says."""

    kind: str
    """urlset, index, rss, atom, text, or not_sitemap."""
    pages: list[Entry]
    children: list[Entry]
    is_whole: bool
    """False where a limit or a broken gzip stream ended it early."""


class Reader:
    """Reads one file piece by piece."""

    def __init__(self) -> None:
        self.is_whole = True
        self._has_begun = False
        """Whether the first character is known, which tells text from markup."""
        self._kind: str | None = None
        self._decoder: codecs.IncrementalDecoder | None = None
        self._text = ""
        self._until: str | None = None
        """What ends the comment, instruction or declaration that is being skipped."""
        self._open: list[str] = []
        self._held: list[str] | None = None
        """Text of the element that is wanted, as it is written: a piece may end in an entity."""
        self._held_chars = 0
        self._link: str | None = None
        self._notes: dict[str, str] = {}
        self._found: list[Entry] = []
        self._steps = 0

    @property
    def is_full(self) -> bool:
        """Tell whether nothing more is wanted."""
        # One more than is kept, which tells that there were more.
        return (
            self._kind == "not_sitemap" or len(self._found) > self._most or self._steps > _MAX_STEPS
        )

    @property
    def _most(self) -> int:
        return MAX_CHILDREN if self._kind == "index" else MAX_ENTRIES

    def feed(self, piece: bytes) -> None:
        """Read a piece."""
        if self._decoder is None:
            charset_ = charset.sniff(piece, None)
            self._decoder = codecs.getincrementaldecoder(charset_.codec)("replace")
            piece = charset.without_mark(piece)
        self._text += self._decoder.decode(piece)
        self._scan(is_last=False)

    def close(self) -> Sitemap:
        """Return what was found."""
        if self._decoder is not None and not self.is_full:
            self._text += self._decoder.decode(b"", final=True)
            self._scan(is_last=True)
        self._end_entry()
        kind = self._kind or "not_sitemap"
        found = self._found[: self._most]
        is_whole = self.is_whole and len(self._found) <= self._most and self._steps <= _MAX_STEPS
        if kind == "index":
            return Sitemap(kind, [], found, is_whole)
        return Sitemap(kind, found, [], is_whole)

    def _scan(self, *, is_last: bool) -> None:
        if not self._has_begun:
            start = self._text.lstrip("\ufeff\0 \t\r\n\v\f")
            if not start and not is_last:
                self._text = ""
                return
            if start and not start.startswith("<"):
                self._kind = "text"
            self._text, self._has_begun = start, True
        if self._kind == "text":
            self._read_lines(is_last=is_last)
        elif self._kind != "not_sitemap":
            self._read_tags(is_last=is_last)

    def _read_lines(self, *, is_last: bool) -> None:
        *lines, rest = re.split(r"[\r\n]+", self._text)
        if is_last:
            lines.append(rest)
            rest = ""
        self._text = rest if len(rest) <= _MAX_TAG_CHARS else ""
        for line in lines:
            found = line.strip()
            if found[:8].lower().startswith(("http://", "https://")) and self._has_room():
                self._add(Entry(found))

    def _read_tags(self, *, is_last: bool) -> None:
        text, at = self._text, 0
        while not self.is_full:
            self._steps += 1
            if self._until is not None:
                end = text.find(self._until, at)
                if end < 0:
                    at = max(at, len(text) - len(self._until) + 1)
                    break
                at, self._until = end + len(self._until), None
            start = text.find("<", at)
            if start < 0:
                self._keep(text[at:])
                at = len(text)
                break
            self._keep(text[at:start])
            at = start
            ahead = self._special(text, at)
            if ahead is None:
                ahead = self._tag(text, at)
            if ahead < 0:
                break
            at = ahead
        self._text = "" if is_last else text[at:]

    def _special(self, text: str, at: int) -> int | None:
        """Step over what is no tag; None where it is one, negative where more text is needed."""
        if text.startswith(_CDATA, at):
            end = text.find("]]>", at)
            if end < 0:
                return -1 if len(text) - at < _MAX_TAG_CHARS else self._skip(at, "]]>")
            self._keep(text[at + len(_CDATA) : end], is_raw=True)
            return end + 3
        for begin, end_mark in _SKIPPED:
            if text.startswith(begin, at):
                return self._skip(at + len(begin), end_mark)
        if text.startswith("<!", at):
            if len(text) - at < len(_CDATA):
                return -1
            stop = re.compile(r"[\[>]").search(text, at)
            if stop is None:
                return -1 if len(text) - at < _MAX_TAG_CHARS else self._skip(at, ">")
            # Declarations of entities are passed over up to the end of their subset.
            return stop.end() if stop[0] == ">" else self._skip(stop.end(), "]")
        return None

    def _skip(self, at: int, until: str) -> int:
        self._until = until
        return at

    def _tag(self, text: str, at: int) -> int:
        again = text.find("<", at + 1)
        end = text.find(">", at + 1, again if again >= 0 else len(text))
        if again >= 0 and end < 0:
            self._keep(text[at:again])  # a stray "<", as in an unescaped query
            return again
        if end < 0:
            return -1 if len(text) - at < _MAX_TAG_CHARS else self._skip(at, ">")
        inside = text[at + 1 : end]
        named = _NAME.match(inside)
        if named is not None:
            name = named[1].lower()
            if inside.startswith("/"):
                self._ended(name)
            else:
                self._began(name, inside[named.end() :], is_empty=inside.endswith("/"))
        return end + 1

    def _began(self, name: str, attributes: str, *, is_empty: bool) -> None:
        if self._kind is None:
            self._kind = _ROOTS.get(name, "not_sitemap")
            return
        entry = _ENTRY_OF[self._kind]
        if name == entry:
            self._end_entry()
            self._open = [entry]
            return
        parent = self._open[-1] if self._open else None
        if parent == entry:
            self._held, self._held_chars = None, 0
            if name == _LINK_OF[self._kind]:
                if self._kind == "atom":
                    self._take_href(attributes)
                elif self._link is None:
                    self._held = []
            elif name in _NOTES:
                self._held = []
        if not is_empty and self._open and len(self._open) < _MAX_DEPTH:
            self._open.append(name)

    def _take_href(self, attributes: str) -> None:
        found = {name.lower(): a or b or c for name, a, b, c in _ATTRIBUTE.findall(attributes)}
        is_page = found.get("rel", "alternate").lower() == "alternate"
        if is_page and self._link is None and found.get("href"):
            self._link = _unescaped(found["href"])

    def _ended(self, name: str) -> None:
        if self._kind is None or name not in self._open:
            return
        if self._held is not None and self._open[-1] == name:
            self._take_text(name)
        self._held = None
        while self._open.pop() != name:
            pass
        if not self._open:
            self._end_entry()

    def _take_text(self, name: str) -> None:
        assert self._held is not None
        assert self._kind is not None
        value = _unescaped("".join(self._held)).strip()
        if name == _LINK_OF[self._kind]:
            self._link = value or None
        else:
            self._notes[name] = value

    def _end_entry(self) -> None:
        if self._link and self._has_room():
            self._add(Entry(self._link, _lastmod(self._notes), _priority(self._notes)))
        self._link, self._notes, self._held, self._open = None, {}, None, []

    def _has_room(self) -> bool:
        return len(self._found) <= self._most

    def _add(self, entry: Entry) -> None:
        if len(entry.url) <= MAX_URL_BYTES and "\0" not in entry.url:
            self._found.append(entry)

    def _keep(self, text: str, *, is_raw: bool = False) -> None:
        if self._held is not None and text:
            self._held_chars += len(text)
            if self._held_chars > _MAX_TAG_CHARS:
                self._held = None
            else:
                self._held.append(text.replace("&", "&amp;") if is_raw else text)


def _unescaped(text: str) -> str:
    """Undo the entities of XML; one that is not of them becomes NUL, and spoils its URL."""
    return _REFERENCE.sub(_char, text) if "&" in text else text


def _char(found: re.Match[str]) -> str:
    name = found[1]
    if name.startswith("#"):
        number = int("0" + name[1:], 0) if name[1] == "x" else int(name[1:])
        is_char = 0 < number < 0x110000 and not 0xD800 <= number < 0xE000
        return chr(number) if is_char else "\0"
    return _ENTITIES.get(name, "\0")


def _lastmod(notes: dict[str, str]) -> str | None:
    value = notes.get("lastmod", "")[:40]
    return value if re.fullmatch(r"[0-9]{4}[0-9A-Za-z:.+\-]*", value) else None


def _priority(notes: dict[str, str]) -> float | None:
    try:
        value = float(notes.get("priority", ""))
    except ValueError:
        return None
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else None
