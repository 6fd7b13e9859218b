"""Results as a Parquet file, written in row groups: memory does not grow with the job.

Needs ``pyarrow``, which only the extra ``parquet`` brings.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, BinaryIO, Final

from common.model.errors import UsageError
from crawlctl.export.columns import COLUMNS, Cell, Column, cells, decode

ROW_GROUP: Final = 10_000
"""Records a row group: about ten megabytes in memory."""
_TIME: Final = "fetched_at"


def _library() -> tuple[Any, Any]:
    """Return pyarrow and its Parquet module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise UsageError(
            "--format: parquet needs pyarrow; install it with pip install 'crawlctl[parquet]'"
        ) from error
    return pa, parquet


def check_available() -> None:
    """Refuse early where the library is missing.

    Raises:
        UsageError: it is not installed.
    """
    _library()


class ParquetWriter:
    """Writes records to an open file; :meth:`close` makes it a Parquet file."""

    def __init__(self, file: BinaryIO) -> None:
        self._pa, parquet = _library()
        schema = self._pa.schema(
            self._pa.field(column.name, self._type(column), nullable=column.nullable)
            for column in COLUMNS
        )
        self._writer = parquet.ParquetWriter(file, schema, compression="zstd")
        self._schema = schema
        self._rows: list[list[Cell]] = []

    def _type(self, column: Column) -> Any:
        if column.name == _TIME:
            return self._pa.timestamp("ms", tz="UTC")
        if issubclass(column.kind, str):
            return self._pa.string()
        if column.kind is float:
            return self._pa.float64()
        return self._pa.bool_() if column.kind is bool else self._pa.int64()

    def write(self, records: Sequence[bytes]) -> None:
        """Take JSON records in; full row groups go to the file."""
        self._rows += (cells(decode(record)) for record in records)
        while len(self._rows) >= ROW_GROUP:
            self._write_group(self._rows[:ROW_GROUP])
            del self._rows[:ROW_GROUP]

    def close(self) -> None:
        """Write what is left and the footer."""
        if self._rows:
            self._write_group(self._rows)
            self._rows = []
        self._writer.close()

    def _write_group(self, rows: Sequence[Sequence[Cell]]) -> None:
        arrays = []
        for column, values in zip(COLUMNS, zip(*rows, strict=True), strict=True):
            kind = self._type(column)
            found = [_time(value) for value in values] if column.name == _TIME else list(values)
            arrays.append(self._pa.array(found, type=kind))
        table = self._pa.Table.from_arrays(arrays, schema=self._schema)
        self._writer.write_table(table, row_group_size=len(rows))


def _time(value: Cell) -> datetime:
    assert isinstance(value, str)
    return datetime.fromisoformat(value)
