"""A record as a flat row, in CSV and Parquet."""

from __future__ import annotations

import csv
import io
from typing import Any

import msgspec
import pytest
from pyarrow import parquet

from crawlctl.export.formats import CSV
from crawlctl.export.parquet import ParquetWriter
from tests.support.results import record


def lines_of(**fields: Any) -> list[bytes]:
    return [msgspec.json.encode(msgspec.structs.replace(record(1), **fields))]


def in_csv(column: str, **fields: Any) -> list[str]:
    text = (CSV.head + CSV.encode(lines_of(**fields))).decode()
    return [row[column] for row in csv.DictReader(io.StringIO(text, newline=""))]


def in_parquet(column: str, **fields: Any) -> list[Any]:
    file = io.BytesIO()
    writer = ParquetWriter(file)
    writer.write(lines_of(**fields))
    writer.close()
    found: list[Any] = parquet.read_table(io.BytesIO(file.getvalue()))[column].to_pylist()
    return found


@pytest.mark.parametrize(
    ("words", "text"), [((), ""), (("nofollow", "noindex"), "nofollow,noindex")]
)
def test_a_list_of_words_is_one_text(words: tuple[str, ...], text: str) -> None:
    """Symptom: ``()`` in CSV, a traceback in Parquet. Every cell is a plain value."""
    assert [text] == in_csv("robots", robots=words)
    assert [text] == in_parquet("robots", robots=words)


@pytest.mark.parametrize(
    ("extra", "text"),
    [(None, None), ({"p": {"a": ["x", 1], "b": None}}, '{"p":{"a":["x",1],"b":null}}')],
)
def test_what_plugins_add_is_one_text_of_json(extra: Any, text: str | None) -> None:
    assert [text or ""] == in_csv("extra", extra=extra)
    assert [text] == in_parquet("extra", extra=extra)


@pytest.mark.parametrize("priority", [0.25, 1.0, None])
def test_a_priority_is_a_fraction(priority: float | None) -> None:
    """Symptom: Parquet took the column for whole numbers and failed. A kind has one type."""
    assert ["" if priority is None else str(priority)] == in_csv("priority", priority=priority)
    assert [priority] == in_parquet("priority", priority=priority)
