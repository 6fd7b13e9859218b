"""What a page itself asks of crawlers: the X-Robots-Tag field and the robots meta element.

Known are ``noindex``, ``nofollow`` (``none`` is both) and ``noarchive``; others are not kept. A
field may begin with the name of the crawler it is for; ones for others do not count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

KNOWN: Final = ("noarchive", "nofollow", "noindex")
_ALIASES: Final = {"none": ("nofollow", "noindex")}
_WITH_VALUE: Final = frozenset(
    ("max-image-preview", "max-snippet", "max-video-preview", "unavailable_after")
)

_IN_DATE: Final = re.compile(r"\s*[0-9]+[ -]\w+[ -][0-9]+ [0-9]+$")
"""What stands between the comma and the first colon of a date: no crawler's name."""


def of_header(fields: Iterable[str], *, agent: str) -> frozenset[str]:
    """Return the directives for us of the X-Robots-Tag fields of a response.

    Args:
        fields: each as sent.
        agent: our product token, lower case.
    """
    found: set[str] = set()
    for field in fields:
        is_ours = True
        for word in field[:4096].split(","):
            name, colon, rest = word.strip().lower().partition(":")
            if colon and name.strip() not in _WITH_VALUE and not _IN_DATE.match(name):
                is_ours = name.strip() in ("*", agent)
                name = rest
            if is_ours:
                found |= _meaning(name)
    return frozenset(found)


def of_meta(name: str, content: str, *, agent: str) -> frozenset[str]:
    """Return the directives for us of a meta element."""
    if name.strip().lower() not in ("robots", agent):
        return frozenset()
    words = content[:4096].replace(";", ",").split(",")
    return frozenset().union(*(_meaning(word) for word in words))


def agent_of(user_agent: str) -> str:
    """Return the product token of a User-Agent field, lower case."""
    return user_agent.strip().partition("/")[0].partition(" ")[0].lower()


def _meaning(word: str) -> frozenset[str]:
    word = word.strip().lower()
    return frozenset(_ALIASES.get(word, (word,) if word in KNOWN else ()))
