"""What commands write: JSON documents and tables on standard output, notes on standard error.

Whatever may have come from the web is shown without control characters.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import Final, TextIO

import msgspec

from common.runtime.printable import printable

_OBEYED: Final = re.compile("[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""What JSON lets stand as it is but some terminals obey: controls, changes of direction."""


def json_text(document: object, *, indent: int | None = None) -> str:
    """Return the document as JSON, in one line or indented by so many columns."""
    encoded = msgspec.json.encode(document)
    text = (encoded if indent is None else msgspec.json.format(encoded, indent=indent)).decode()
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def print_json(document: object, *, indent: int | None = None) -> None:
    """Write one JSON document, a line of its own, or several for people to read."""
    sys.stdout.write(json_text(document, indent=indent) + "\n")
    sys.stdout.flush()


def print_line(text: str = "") -> None:
    """Write a line of a human answer."""
    sys.stdout.write(printable(text) + "\n")


def redraws(stream: TextIO) -> bool:
    """Tell whether a line written to a stream can be written anew: on a terminal that can."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def note(text: str) -> None:
    """Write a line beside the answer, on standard error."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


def print_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write rows in aligned columns; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(header), *(len(row[column]) for row in cells), 0)
        for column, header in enumerate(headers)
    ]
    right = [
        bool(rows) and all(isinstance(row[column], int | float | None) for row in rows)
        for column in range(len(headers))
    ]
    for line in ([header.upper() for header in headers], *cells):
        parts = [
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ]
        sys.stdout.write("  ".join(parts).rstrip() + "\n")
    sys.stdout.flush()


def quantity(number: int, thing: str) -> str:
    """Return a number of things as people write it: ``1 page``, ``2 pages``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def duration(seconds: float) -> str:
    """Return a length of time as people read it: ``7s``, ``3m05s``, ``2h10m``, ``4d3h``."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600}h"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return printable(str(value))
