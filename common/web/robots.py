"""robots.txt as RFC 9309 has it: whose rules count for us, and what they say of a URL.

Leniences, each on the polite side or usual: a missing colon, common misspellings of ``Disallow``,
``User-agent: Name/1.0``, ``Crawl-delay`` and ``Sitemap`` lines. Lines that are no rules never split
a group. Rules and URLs are compared by octets after percent-encoding is normalised.

Nothing raises on hostile input, and what a verdict costs is bounded: plain rules are looked up by
length, at most ``_MAX_WILDCARD_RULES`` rules with wildcards are kept, and these match in linear
time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple, Self

from common.web.url import MAX_URL_BYTES, path_of

MAX_BYTES: Final = 512_000
"""How much of a file is read: the 500 KiB that RFC 9309 asks for."""
MAX_CRAWL_DELAY_S: Final = 86_400.0
MAX_SITEMAPS: Final = 1_000
_MAX_WILDCARD_RULES: Final = 2_000
_MAX_SHOWN_CHARS: Final = 200

_USER_AGENT: Final = frozenset(("user-agent", "useragent", "user agent"))
_ALLOW: Final = frozenset(("allow",))
_DISALLOW: Final = frozenset(
    ("disallow", "dissallow", "dissalow", "disalow", "diasllow", "disallaw")
)
_CRAWL_DELAY: Final = frozenset(("crawl-delay", "crawldelay"))
_SITEMAP: Final = frozenset(("sitemap", "site-map"))
_KNOWN: Final = _USER_AGENT | _ALLOW | _DISALLOW | _CRAWL_DELAY | _SITEMAP

_BLANKS: Final = " \t\v\f\0"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_TOKEN: Final = re.compile(r"[^\s/*,;()]+")
_TO_NORMALISE: Final = re.compile(r"%[0-9A-Fa-f]{2}|[^A-Za-z0-9\-._~:/?#\[\]@!&'()+,;=%]")
"""Triples, and what RFC 3986 has neither as unreserved nor as reserved; ``*`` and ``$`` too."""
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


class RobotsPolicy(Enum):
    """What the status of a robots.txt response means."""

    PARSE = "parse"
    FOLLOW = "follow"
    ALLOW_ALL = "allow_all"
    UNAVAILABLE = "unavailable"
    """Fetch nothing from this host for now; ask again later."""


def policy_for_status(status: int) -> RobotsPolicy:
    """Return what a robots.txt response of this status means.

    429 is a client error by its number and would allow everything, but it is a host's way to say
    that it is asked too much already; it is treated like a server error.
    """
    if 200 <= status < 300:
        return RobotsPolicy.PARSE
    if 300 <= status < 400:
        return RobotsPolicy.FOLLOW
    if 400 <= status < 500 and status != 429:
        return RobotsPolicy.ALLOW_ALL
    return RobotsPolicy.UNAVAILABLE


class Verdict(NamedTuple):
    """Whether a URL may be fetched, and the line that says so (None: no line speaks of it)."""

    allowed: bool
    rule: str | None


class _Rule(NamedTuple):
    is_allowing: bool
    text: str


class _WildcardRule(NamedTuple):
    length: int
    rule: _Rule
    parts: tuple[str, ...]
    """What stands between the asterisks; the first must begin the path."""
    is_anchored: bool

    def matches(self, path: str) -> bool:
        first, *middle = self.parts
        if not path.startswith(first):
            return False
        if not middle:
            return not self.is_anchored or path == first
        last = middle.pop()
        position = len(first)
        for part in middle:
            found = path.find(part, position)
            if found < 0:
                return False
            position = found + len(part)
        if self.is_anchored:
            return len(path) - len(last) >= position and path.endswith(last)
        return path.find(last, position) >= 0


class RobotsRules:
    """The rules of one host for one user agent."""

    __slots__ = ("_lengths", "_plain", "_wildcard", "crawl_delay_s", "sitemaps")

    def __init__(
        self, rules: list[tuple[str, _Rule]], *, delays: list[float], sitemaps: tuple[str, ...]
    ) -> None:
        self.crawl_delay_s: float | None = max(delays, default=None)
        """The longest delay asked for, at most ``MAX_CRAWL_DELAY_S``."""
        self.sitemaps = sitemaps
        """As written, distinct, in order: not resolved, not checked."""
        self._plain: dict[str, _Rule] = {}
        self._wildcard: list[_WildcardRule] = []
        for pattern, rule in rules:
            self._add(pattern, rule)
        self._lengths = sorted({len(pattern) for pattern in self._plain}, reverse=True)
        self._wildcard.sort(key=lambda one: (one.length, one.rule.is_allowing), reverse=True)

    @classmethod
    def allow_all(cls) -> Self:
        """Return the rules of a host that has none."""
        return cls([], delays=[], sitemaps=())

    @classmethod
    def parse(cls, body: bytes, *, user_agent: str) -> Self:
        """Read a robots.txt; only the first ``MAX_BYTES`` of it.

        Args:
            body: The file as received, content coding undone.
            user_agent: Our User-Agent field; what comes before a slash or space is its token.
        """
        token = re.split(r"[/\s]", user_agent.strip(), maxsplit=1)[0].lower()
        ours, everyones = _Group(), _Group()
        sitemaps: dict[str, None] = {}
        current: list[_Group] = []
        is_naming_agents = False
        for key, value in _lines(body):
            if key in _USER_AGENT:
                if not is_naming_agents:
                    current, is_naming_agents = [], True
                group = _group_named(value, token=token, ours=ours, everyones=everyones)
                if group is not None:
                    group.is_named = True
                    current.append(group)
            elif key in _ALLOW or key in _DISALLOW:
                is_naming_agents = False
                for group in current:
                    group.add_rule(value, is_allowing=key in _ALLOW)
            elif key in _CRAWL_DELAY:
                for group in current:
                    group.add_delay(value)
            elif value and len(sitemaps) < MAX_SITEMAPS and len(value) <= MAX_URL_BYTES:
                sitemaps[value] = None
        group = ours if ours.is_named else everyones
        return cls(group.rules, delays=group.delays, sitemaps=tuple(sitemaps))

    def verdict(self, url: str) -> Verdict:
        """Tell whether a canonical URL may be fetched: the longest rule decides, allow on a tie."""
        path = path_of(url)
        if path.partition("?")[0] == "/robots.txt":
            return Verdict(allowed=True, rule=None)
        path = _normalised(path)
        longest, best = -1, None
        for length in self._lengths:
            best = self._plain.get(path[:length]) if length <= len(path) else None
            if best is not None:
                longest = length
                break
        for wildcard in self._wildcard:
            if wildcard.length < longest or (
                wildcard.length == longest and best is not None and best.is_allowing
            ):
                break
            if wildcard.matches(path):
                best = wildcard.rule
                break
        return Verdict(True, None) if best is None else Verdict(best.is_allowing, best.text)

    def _add(self, raw: str, rule: _Rule) -> None:
        is_anchored = raw.endswith("$")
        parts = [_normalised(part) for part in raw.removesuffix("$").split("*")]
        if len(parts) == 1 and not is_anchored:
            held = self._plain.get(parts[0])
            if held is None or rule.is_allowing:
                self._plain[parts[0]] = rule
        elif len(self._wildcard) < _MAX_WILDCARD_RULES:
            length = sum(map(len, parts)) + len(parts) - 1 + is_anchored
            self._wildcard.append(_WildcardRule(length, rule, tuple(parts), is_anchored))


class _Group:
    """What the file says for one asking agent, gathered over all its groups."""

    def __init__(self) -> None:
        self.is_named = False
        self.rules: list[tuple[str, _Rule]] = []
        self.delays: list[float] = []

    def add_rule(self, value: str, *, is_allowing: bool) -> None:
        if value and len(value) <= MAX_URL_BYTES:
            text = f"{'Allow' if is_allowing else 'Disallow'}: {_printable(value)}"
            self.rules.append((value, _Rule(is_allowing, text)))

    def add_delay(self, value: str) -> None:
        try:
            delay_s = float(value)
        except ValueError:
            return
        if math.isfinite(delay_s) and delay_s >= 0:
            self.delays.append(min(delay_s, MAX_CRAWL_DELAY_S))


def _group_named(value: str, *, token: str, ours: _Group, everyones: _Group) -> _Group | None:
    if re.match(r"\*(?:\s|$)", value):
        return everyones
    named = _TOKEN.match(value)
    return ours if named is not None and named[0].lower() == token else None


def _lines(body: bytes) -> Iterator[tuple[str, str]]:
    """Yield key and value of the lines that mean something."""
    text = body[:MAX_BYTES].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    lines = _LINE_END.split(text)
    if len(body) > MAX_BYTES:
        lines.pop()  # cut in the middle, it would say something else
    for line in lines:
        content = line.partition("#")[0].strip(_BLANKS)
        key, colon, value = content.partition(":")
        key = key.strip(_BLANKS).lower()
        if not colon or key not in _KNOWN:
            words = content.split()
            if len(words) != 2 or words[0].lower() not in _KNOWN:
                continue
            key, value = words[0].lower(), words[1]
        yield key, value.strip(_BLANKS)


def _normalised(text: str) -> str:
    """Return a path, or a part of a rule, in the one spelling in which they are compared."""
    return _TO_NORMALISE.sub(_spelling, text)


def _spelling(found: re.Match[str]) -> str:
    text = found[0]
    if len(text) == 3:
        char = chr(int(text[1:], 16))
        return char if char in _UNRESERVED else text.upper()
    return "".join(f"%{octet:02X}" for octet in text.encode("utf-8", "surrogateescape"))


def _printable(value: str) -> str:
    shown = value[:_MAX_SHOWN_CHARS]
    return shown.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
