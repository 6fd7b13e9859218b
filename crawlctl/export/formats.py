"""Text formats of results: JSON lines, and CSV as RFC 4180 has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from common.runtime.printable import printable
from crawlctl.export.columns import COLUMNS, Cell, cells, decode

_C1: Final = re.compile(rb"\x7f|\xc2[\x80-\x9f]")
"""Control characters JSON lets stand as they are (UTF-8): never for a terminal."""
_LINE_END: Final = "\r\n"


class TextFormat(NamedTuple):
    """How records become bytes that may be written one after the other."""

    head: bytes
    """What a file begins with."""
    encode: Callable[[Sequence[bytes]], bytes]
    """JSON records to bytes."""
    for_terminal: Callable[[bytes], bytes]
    """Bytes of this format without what a page could do to a terminal."""


def _encode_jsonl(records: Sequence[bytes]) -> bytes:
    return b"".join(record + b"\n" for record in records)


def _escape_controls(lines: bytes) -> bytes:
    return _C1.sub(lambda match: b"\\u%04x" % ord(match[0].decode()), lines)


def _csv_cell(value: Cell) -> str:
    """Return a value as it stands in CSV.

    Texts are quoted always: so a null (nothing) differs from an empty text, and what looks like a
    number or a formula is left as it was on the web, marked as text as well as CSV can.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _encode_csv(records: Sequence[bytes]) -> bytes:
    rows = (",".join(map(_csv_cell, cells(decode(record)))) + _LINE_END for record in records)
    return "".join(rows).encode()


def _replace_controls(rows: bytes) -> bytes:
    return _LINE_END.join(map(printable, rows.decode().split(_LINE_END))).encode()


JSONL: Final = TextFormat(b"", _encode_jsonl, _escape_controls)
CSV: Final = TextFormat(
    (",".join(column.name for column in COLUMNS) + _LINE_END).encode(),
    _encode_csv,
    _replace_controls,
)
TEXT_FORMATS: Final = {"jsonl": JSONL, "csv": CSV}
