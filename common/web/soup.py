"""Pages that would cost a tree builder more time or memory than any page is worth.

The tree rules of HTML are not linear: each open tag may walk the stack of open elements, each
attribute is compared with its sisters, and formatting elements left open (``<font>``) are made
anew in every following block, so 40 kB of markup can become 4 million nodes. Such pages exist by
accident as well as by malice. They are recognised here by counting, and flattened: only the tags
that matter remain, in order, with nothing to nest in. Links and title survive; exact tree rules
do not.

This is no proof against a page written against these very counts; the limits of the process are.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_SMALL_BYTES: Final = 8_192
"""Nothing of this size or less can cost much."""
_FEW_TAGS: Final = 1_500
_MANY_UNCLOSED: Final = 400
_DEEP_TAGS: Final = 8_192
"""With fewer open tags than this even one nest of all of them is built in a tenth of a second."""
_MAX_RESTARTS: Final = 300_000
"""Formatting elements left open times open tags: about how many nodes a parser may add."""
_MAX_STEPS: Final = 200_000_000
"""Depth times open tags: about half a second of walking up the stack."""
_MANY_ATTRIBUTES: Final = 10_000

_FORMATTING: Final = frozenset(b"b big code em font i nobr s small strike strong tt u".split())
_VOID: Final = frozenset(
    b"area base br col embed hr img input link meta param source track wbr".split()
)
_SELF_CLOSING: Final = frozenset(b"a dd dt li option p td th tr".split())
_NAMES: Final = re.compile(rb"<(/?[A-Za-z][^\s/>]*)")
_LONG_BYTES: Final = 16_384
_LONG_TAG: Final = re.compile(rb"<[A-Za-z][^<>]{%d,}" % (2 * _LONG_BYTES))
_KEPT: Final = re.compile(
    rb"<!--.*?-->"
    rb"|<(?P<raw>script|style|textarea|xmp|noembed|noframes)\b.*?</(?P=raw)\b"
    rb"|(?P<title><title\b[^<>]*>[^<]*)"
    rb"|(?P<tag><(?P<name>a|area|base|frame|iframe|link|meta)\b[^<>]{0,16384})",
    re.IGNORECASE | re.DOTALL,
)


def is_abusive(body: bytes) -> bool:
    """Tell whether a tree of ``body`` could take seconds or hundreds of megabytes to build."""
    if len(body) <= _SMALL_BYTES:
        return False
    tags = body.count(b"<")
    if tags > _FEW_TAGS:
        closing = body.count(b"</")
        opening = tags - closing
        is_unbalanced = opening - closing > _MANY_UNCLOSED
        if (is_unbalanced or opening > _DEEP_TAGS) and _is_costly(_NAMES.findall(body.lower())):
            return True
    # A tag of two blocks' length covers one whole block: look into blocks before searching at all.
    blocks = range(0, len(body) - _LONG_BYTES, _LONG_BYTES)
    if all(body.find(b">", start, start + _LONG_BYTES) >= 0 for start in blocks):
        return False
    return any(_attribute_count(tag[0]) > _MANY_ATTRIBUTES for tag in _LONG_TAG.finditer(body))


def flattened(body: bytes) -> bytes:
    """Return a page with the title, base, links and frames of ``body`` and nothing else."""
    parts: list[bytes] = []
    for found in _KEPT.finditer(body):
        if found["title"] is not None:
            parts.append(found["title"] + b"</title>")
        elif found["tag"] is not None:
            parts.append(b"%b></%b>" % (found["tag"], found["name"]))
    return b"".join(parts)


def _is_costly(names: list[bytes]) -> bool:
    counts = Counter(names)
    opening = sum(count for name, count in counts.items() if name[0] != 0x2F)
    unclosed = sum(max(0, counts[name] - counts[b"/" + name]) for name in _FORMATTING)
    if unclosed * opening > _MAX_RESTARTS:
        return True
    return opening > _DEEP_TAGS and _depth(names) * opening > _MAX_STEPS


def _depth(names: list[bytes]) -> int:
    """Return how deep the elements nest, about: an element ends its open namesake just above."""
    stack: list[bytes] = []
    is_open: Counter[bytes] = Counter()
    deepest = 0
    for name in names:
        if name[0] != 0x2F:
            if name not in _VOID and not (stack and stack[-1] == name and name in _SELF_CLOSING):
                stack.append(name)
                is_open[name] += 1
                deepest = max(deepest, len(stack))
        elif is_open[name[1:]]:
            while (last := stack.pop()) != name[1:]:
                is_open[last] -= 1
            is_open[last] -= 1
    return deepest


def _attribute_count(tag: bytes) -> int:
    return len(tag.split()) + tag.count(b"=")
