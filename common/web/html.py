"""What a crawler needs of a page: title, links, encoding.

Links come out canonical, distinct, in document order, resolved against the page's own base, http
and https only. Each href is looked at once a page as a raw string, and once a site as a URL
(``common.web.references``).

Scripts do not run: noscript is markup, templates are inert. Nothing raises on any input.
An :class:`HtmlParser` belongs to one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from selectolax.lexbor import LexborDocumentOptions, LexborHTMLParser, LexborNode

from common.web import charset, directives, simhash, soup
from common.web.references import MEMO_ENTRIES, LinkResolver, with_query_in
from common.web.url import canonicalize, document_base

MAX_TITLE_CHARS: Final = 500
_MAX_RAW_TITLE_CHARS: Final = 20_000
_NOWHERE: Final = "javascript:"
"""Stands for an attribute that only looks like the one asked for, as ``xlink:href`` does."""
_SELECTORS: Final = {
    "base": "base[href]",
    "meta": "meta[name][content]",
    "a": "a[href]",
    "area": "area[href]",
    "link": "link[href]",
    "iframe": "iframe[src]",
    "frame": "frame[src]",
    "meta-refresh": "meta[http-equiv][content]",
    "canonical": "link[rel~='canonical' i][href]",
}
_ALWAYS: Final = frozenset(("base", "meta"))
_RARE: Final = frozenset(("base", "area", "link", "iframe", "frame"))
"""Elements that many pages do not have."""
_RARE_TAG: Final = re.compile(rb"<(base|area|link|iframe|frame)(?![a-z])")
_CODED_LETTER: Final = re.compile(
    rb"&#(?:x0*+(?:[46][1-9a-f]|[57][0-9a])(?![0-9a-f])"
    rb"|0*+(?:6[5-9]|[78][0-9]|9[0-9]|1[01][0-9]|12[0-2])(?![0-9]))"
)
"""A letter written as its number: what is looked for as it is usually written may hide."""
_UNMARKED: Final = ":not([rel~='nofollow' i])"
_MARKED: Final = "a[href][rel~='nofollow' i],area[href][rel~='nofollow' i]"
_PLAIN: Final = f"a[href]{_UNMARKED},area[href]{_UNMARKED}"
_FEW_MARKED: Final = 16
_HREF_TAGS: Final = frozenset(("a", "area", "link"))
_NOT_ASCII_COMPATIBLE: Final = frozenset(("utf-16le", "utf-16be", "iso-2022-jp"))
_CONTROLS: Final = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)))
_REFRESH: Final = re.compile(
    r"""[\t\n\f\r ]*(?:[0-9]|(?=\.))[0-9.]*(?:[\t\n\f\r ]*[;,]|[\t\n\f\r ])[\t\n\f\r ]*
    (?:url[\t\n\f\r ]*=[\t\n\f\r ]*)?(?:"([^"]*)|'([^']*)|([^"'].*))""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What was found on a page."""

    title: str | None
    """White space collapsed, no control characters, at most ``MAX_TITLE_CHARS``."""
    links: list[str]
    """Canonical URLs, distinct, in document order."""
    found: int
    """Distinct references before those that cannot be crawled were left out."""
    encoding: str
    """WHATWG name."""
    directives: frozenset[str] = frozenset()
    """What its robots meta elements say, see ``common.web.directives``."""
    canonical: str | None = None
    """Canonical URL that the page names for itself (``link rel=canonical``)."""
    nofollow: frozenset[str] = frozenset()
    """Those of ``links`` that stand only in elements marked ``rel=nofollow``."""
    simhash: str | None = None
    """Of its text, where it was asked for."""


class HtmlParser:
    """Parses pages; remembers what references mean between them."""

    def __init__(
        self,
        *,
        memo_entries: int = MEMO_ENTRIES,
        agent: str = "crawlctl",
        with_simhash: bool = False,
    ) -> None:
        """Prepare.

        Args:
            memo_entries: References remembered.
            agent: Our product token; robots meta elements may be for us alone.
            with_simhash: Hash the text of each page; takes about as long as all the rest.
        """
        self._resolver = LinkResolver(max_entries=memo_entries)
        self._agent = agent
        self._with_simhash = with_simhash
        self._queries: dict[tuple[str, ...], str] = {}

    def parse(
        self, body: bytes, *, url: str, content_type: str | None, follow: frozenset[str]
    ) -> Page:
        """Return what is found on a page.

        Args:
            body: The content as received, content coding undone.
            url: Canonical URL of the page.
            content_type: The header field, for its charset.
            follow: Which elements count as links: ``a``, ``area``, ``link``, ``iframe``, ``frame``,
                ``meta-refresh``, ``canonical``.
        """
        encoding = charset.sniff(body, content_type)
        text = _as_utf8(body, encoding)
        if soup.is_abusive(text):
            text = soup.flattened(text)
        tree = LexborHTMLParser(text, options=LexborDocumentOptions.WO_EVENTS)
        lowered = text.lower()  # a search of bytes tells quickly what a page does not have
        references, base, said = _found(
            tree.css(self._query(follow, lowered)),
            url=url,
            agent=self._agent,
            with_refresh="meta-refresh" in follow,
        )
        links = self._resolved(references, base, encoding)
        return Page(
            title=_title(tree),
            links=links,
            found=len(references),
            encoding=encoding.name,
            directives=said,
            canonical=_canonical_link(lowered, tree, base),
            nofollow=self._nofollow(lowered, tree, references, base, encoding),
            simhash=_simhash(tree) if self._with_simhash else None,
        )

    def _resolved(
        self, references: Iterable[str], base: str, encoding: charset.Charset
    ) -> list[str]:
        if encoding is not charset.UTF_8:
            references = dict.fromkeys(with_query_in(raw, encoding) for raw in references)
        return self._resolver.resolve(references, base=base)

    def _nofollow(
        self,
        lowered: bytes,
        tree: LexborHTMLParser,
        references: Iterable[str],
        base: str,
        encoding: charset.Charset,
    ) -> frozenset[str]:
        """Return the URLs that no element leads to but those marked ``rel=nofollow``."""
        if not _may_hold(lowered, b"nofollow"):
            return frozenset()
        marked = dict.fromkeys(map(_href, tree.css(_MARKED)))
        if not marked:
            return frozenset()
        plain = _also_plain(tree, marked)
        only = [raw for raw in marked if raw not in plain]
        others = dict.fromkeys(raw for raw in references if raw not in marked or raw in plain)
        shown = self._resolved(others, base, encoding)
        return frozenset(self._resolved(only, base, encoding)).difference(shown)

    def _query(self, follow: frozenset[str], lowered: bytes) -> str:
        """Return the selector of the wanted elements, without those that the page does not have.

        Each selector is tried on each element, which costs several times a search for a tag.
        """
        had = frozenset(_RARE_TAG.findall(lowered))
        chosen = tuple(
            kind
            for kind in _SELECTORS
            if (kind in follow or kind in _ALWAYS) and (kind not in _RARE or kind.encode() in had)
        )
        query = self._queries.get(chosen)
        if query is None:
            query = self._queries[chosen] = ",".join(map(_SELECTORS.__getitem__, chosen))
        return query


def is_html(content_type: str | None, body_start: bytes) -> bool:
    """Tell whether a response holds a page; without a content type, whether it looks like one."""
    essence = (content_type or "").partition(";")[0].strip().lower()
    if "/" in essence:
        return essence in ("text/html", "application/xhtml+xml")
    start = charset.without_mark(body_start).lstrip().lower()
    if start.startswith(b"<?xml"):
        return b"<html" in start
    return start.startswith(b"<")


def _as_utf8(body: bytes, encoding: charset.Charset) -> bytes:
    """Return the document in UTF-8, without byte order mark; bad bytes will read as U+FFFD."""
    if encoding is charset.UTF_8:
        return charset.without_mark(body)
    if encoding.name not in _NOT_ASCII_COMPATIBLE and body.isascii():
        return body
    return charset.without_mark(body).decode(encoding.codec, "replace").encode()


class _Found(NamedTuple):
    references: dict[str, None]
    """Raw, distinct, in order."""
    base: str
    """What they are relative to."""
    directives: frozenset[str]


def _found(nodes: Iterable[LexborNode], *, url: str, agent: str, with_refresh: bool) -> _Found:
    """Return what the wanted elements say."""
    references: dict[str, None] = {}
    base: str | None = None
    said: frozenset[str] = frozenset()
    for node in nodes:
        tag = node.tag
        if tag in _HREF_TAGS:
            references[_href(node)] = None
        elif tag == "base":
            if base is None and "href" in node.attrs:
                base = document_base(url, _href(node))
        elif tag == "meta":
            attributes = node.attrs
            content = attributes.get("content")
            said |= directives.of_meta(attributes.get("name") or "", content or "", agent=agent)
            if with_refresh:
                target = _refresh_target(attributes.get("http-equiv"), content)
                references.update(() if target is None else {target: None})
        else:
            references[node.attrs.get("src", _NOWHERE) or ""] = None
    if base is None:  # else a fragment alone leads to another document
        references = {raw: None for raw in references if raw[:1] != "#"}
    return _Found(references, base or url, said)


def _href(node: LexborNode) -> str:
    return node.attrs.get("href", _NOWHERE) or ""


def _may_hold(lowered: bytes, word: bytes) -> bool:
    """Tell whether an attribute of the page may hold a word, in whatever way it is written."""
    return word in lowered or _CODED_LETTER.search(lowered) is not None


def _also_plain(tree: LexborHTMLParser, marked: Collection[str]) -> set[str]:
    """Return those references of marked elements that stand in elements without the mark too."""
    if len(marked) > _FEW_MARKED:
        return set(map(_href, tree.css(_PLAIN))).intersection(marked)
    # Most pages have few of them, and asking for each costs less than looking at every link.
    return {raw for raw in marked if tree.css_matches(_plain_with(raw))}


def _plain_with(raw: str) -> str:
    """Return the selector of unmarked links with this very reference (CSSOM, 2.1: a string)."""
    text = "".join(f"\\{ord(char):x} " if char < " " or char in '"\\\x7f' else char for char in raw)
    return ",".join(f'{tag}[href="{text}"]{_UNMARKED}' for tag in ("a", "area"))


def _canonical_link(lowered: bytes, tree: LexborHTMLParser, base: str) -> str | None:
    if not _may_hold(lowered, b"canonical"):
        return None
    node = tree.css_first("link[rel~='canonical' i][href]")
    return None if node is None else canonicalize(_href(node), base)


def _simhash(tree: LexborHTMLParser) -> str | None:
    body = tree.body
    if body is None:
        return None
    for node in body.css("script,style,noscript,template"):
        node.decompose()
    return simhash.simhash(body.text(separator=" "))


def _refresh_target(pragma: str | None, content: str | None) -> str | None:
    """Return the URL of a meta refresh, or None where it is none or reloads the page itself."""
    if pragma is None or content is None or pragma.lower() != "refresh":
        return None
    found = _REFRESH.match(content)
    return None if found is None else found[1] or found[2] or found[3]


def _title(tree: LexborHTMLParser) -> str | None:
    node = tree.css_first("title:not(svg title)")
    if node is None:
        return None
    words = " ".join(node.text()[:_MAX_RAW_TITLE_CHARS].split())
    return words.translate(_CONTROLS)[:MAX_TITLE_CHARS].strip() or None
