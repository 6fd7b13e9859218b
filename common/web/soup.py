"""Pages that would cost a tree builder more time or memory than any page is worth.

The tree rules of HTML are not linear: each open tag may walk the stack of open elements, each
attribute is compared with its sisters, and formatting elements left open (``<font>``) are made
anew in every following block, so 40 kB of markup can become 4 million nodes. Such pages exist by
accident as well as by malice. They are recognised here by counting, and flattened: only the tags
that matter remain, in order, with nothing to nest in. Links and title survive; exact tree rules
do not.

Everything here is linear in the size of the page. It is no proof against a page written against
these very counts; the limits of the process are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

_SMALL_BYTES: Final = 8_192
"""Nothing of this size or less can cost much."""
_FEW_TAGS: Final = 1_500
_MANY_UNCLOSED: Final = 400
_DEEP_TAGS: Final = 8_192
"""With fewer open tags than this even one nest of all of them is built in a tenth of a second."""
_TOO_MANY_TAGS: Final = 500_000
"""A tree of this many elements takes about 150 MB."""
_MAX_RESTARTS: Final = 300_000
"""Formatting elements left open times open tags: about how many nodes a parser may add."""
_MAX_STEPS: Final = 200_000_000
"""Depth times open tags: about half a second of walking up the stack."""
_RUN_TAGS: Final = 256
_MANY_ATTRIBUTES: Final = 10_000
_BLOCK_BYTES: Final = 16_384

_FORMATTING: Final = frozenset(b"b big code em font i nobr s small strike strong tt u".split())
_VOID: Final = frozenset(
    b"area base br col embed hr img input link meta param source track wbr".split()
)
_SELF_CLOSING: Final = frozenset(b"a dd dt li option p td th tr".split())
_NAME: Final = re.compile(rb"<(/?[a-z][^\s/>]*)")
_LONG_TAG: Final = re.compile(rb"<[A-Za-z][^<>]{%d,}" % (2 * _BLOCK_BYTES))
_KEPT: Final = re.compile(
    rb"(?P<comment><!--)"
    rb"|<(?P<raw>script|style|textarea|xmp|noembed|noframes)\b"
    rb"|(?P<title><title\b[^<>]*>[^<]*)"
    rb"|<(?P<name>a|area|base|frame|iframe|link|meta)\b(?P<attributes>[^<>]{0,16384})",
    re.IGNORECASE,
)
_ATTRIBUTE: Final = re.compile(
    rb"""(?<![^\s"'/])(?:href|src|http-equiv|content)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'>][^\s>]*)""",
    re.IGNORECASE,
)


def is_abusive(body: bytes) -> bool:
    """Tell whether a tree of ``body`` could take seconds or hundreds of megabytes to build."""
    if len(body) <= _SMALL_BYTES:
        return False
    tags = body.count(b"<")
    if tags > _FEW_TAGS and _is_costly(body, tags=tags):
        return True
    # A tag of two blocks' length covers a whole block: look into blocks before searching at all.
    blocks = range(0, len(body) - _BLOCK_BYTES, _BLOCK_BYTES)
    if all(body.find(b">", start, start + _BLOCK_BYTES) >= 0 for start in blocks):
        return False
    return any(_attribute_count(tag[0]) > _MANY_ATTRIBUTES for tag in _LONG_TAG.finditer(body))


def flattened(body: bytes) -> bytes:
    """Return a page with the title, base, links and frames of ``body`` and nothing else."""
    return b"".join(_kept(body))


def _is_costly(body: bytes, *, tags: int) -> bool:
    closing = body.count(b"</")
    opening = tags - closing
    if opening > _TOO_MANY_TAGS:
        return True
    if opening - closing <= _MANY_UNCLOSED and opening <= _DEEP_TAGS:
        return False
    names = _NAME.findall(body.lower())
    counts = Counter(names)
    unclosed = sum(max(0, counts[name] - counts[b"/" + name]) for name in _FORMATTING)
    if unclosed * opening > _MAX_RESTARTS:
        return True
    # Walking over every tag costs as much as building the tree: only for a page that may be deep.
    return _depth_bound(names) * opening > _MAX_STEPS and _depth(names) * opening > _MAX_STEPS


def _depth_bound(names: list[bytes]) -> int:
    """Return what :func:`_depth` cannot exceed, much quicker, from counts of runs of tags.

    Elements of a name that are open after a run: those before it and opened less closed in it, but
    no fewer than may all have been opened after its closings.
    """
    is_open: Counter[bytes] = Counter()
    deepest = total = 0
    for start in range(0, len(names), _RUN_TAGS):
        counts = Counter(names[start : start + _RUN_TAGS])
        deepest = max(deepest, total + _RUN_TAGS)
        for element in {name.removeprefix(b"/") for name in counts} - _VOID:
            opened, before = counts[element], is_open[element]
            after = max(before + opened - counts[b"/" + element], opened)
            is_open[element] = after
            total += after - before
    return deepest


def _depth(names: list[bytes]) -> int:
    """Return how deep the elements nest, about: an element ends its open namesake just above."""
    stack: list[bytes] = []
    is_open: Counter[bytes] = Counter()
    deepest = 0
    for name in names:
        if not name.startswith(b"/"):
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


def _kept(body: bytes) -> Iterator[bytes]:
    """Yield what ``flattened`` keeps; what is never closed swallows the rest of the page."""
    lowered = body.lower()
    position = kept = 0
    while kept < _TOO_MANY_TAGS and (found := _KEPT.search(body, position)) is not None:
        position = found.end()
        if found["comment"] is not None:
            position = lowered.find(b"-->", position - 2)
        elif found["raw"] is not None:
            position = lowered.find(b"</" + found["raw"].lower(), position)
        elif found["title"] is not None:
            yield found["title"] + b"</title>"
        else:
            kept += 1
            attributes = b" ".join(_ATTRIBUTE.findall(found["attributes"])[:4])
            yield b"<%b %b></%b>" % (found["name"], attributes, found["name"])
        if position < 0:
            return
