"""Text from the web, made safe for a terminal: a page must not be able to write to somebody's."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """Return the text with control and direction-changing characters replaced by U+FFFD."""
    if text.isprintable():
        return text
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(one) in ("Cc", "Cf", "Cs") else one
        for one in text
    )
