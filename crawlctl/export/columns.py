"""A result record as one flat row: the columns of CSV and Parquet.

Nested fields become columns of their own (``error_code``, ``warc_file``), null throughout where the
record has none; a list of words becomes one text, with commas between them; what plugins add is one
text, of JSON. The columns follow from
:class:`~common.model.records.ResultRecord`.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from common.model.records import ResultRecord

Cell = str | int | float | bool | None

decode: Final = msgspec.json.Decoder(ResultRecord).decode
"""A record out of its JSON."""


class Column(NamedTuple):
    """One column."""

    name: str
    kind: type
    """``str``, ``int``, ``float`` or ``bool``, or a subclass."""
    nullable: bool
    path: tuple[str, ...]
    """Fields from the record to the value."""


def _columns(record: type, prefix: tuple[str, ...], *, nullable: bool) -> Iterator[Column]:
    for name, hint in get_type_hints(record).items():
        path = (*prefix, name)
        optional = get_origin(hint) is types.UnionType
        kind: Any = (
            next(one for one in get_args(hint) if one is not type(None)) if optional else hint
        )
        if get_origin(kind) in (tuple, dict):
            yield Column("_".join(path), str, nullable or optional, path)
        elif issubclass(kind, msgspec.Struct):
            yield from _columns(kind, path, nullable=True)
        else:
            yield Column("_".join(path), kind, nullable or optional, path)


COLUMNS: Final = tuple(_columns(ResultRecord, (), nullable=False))


def cells(record: ResultRecord) -> list[Cell]:
    """Return the values of a record in the order of ``COLUMNS``."""
    row: list[Cell] = []
    for column in COLUMNS:
        value: Any = record
        for name in column.path:
            value = None if value is None else getattr(value, name)
        if isinstance(value, tuple):
            value = ",".join(value)
        elif isinstance(value, dict):
            value = msgspec.json.encode(value).decode()
        row.append(value)
    return row
