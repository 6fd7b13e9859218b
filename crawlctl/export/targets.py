"""Where an export goes: standard output, a file that grows, or one replaced when all is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from common.model.errors import UsageError
from crawlctl.export.formats import TextFormat


class StandardOutput:
    """Writes a text format to standard output, safely where that is a terminal."""

    def __init__(self, style: TextFormat) -> None:
        self._style = style
        self._to_terminal = sys.stdout.isatty()
        self._put(style.head)

    def write(self, records: Sequence[bytes]) -> None:
        """Write records; they are seen at once."""
        self._put(self._style.encode(records))
        sys.stdout.buffer.flush()

    def _put(self, data: bytes) -> None:
        sys.stdout.buffer.write(self._style.for_terminal(data) if self._to_terminal else data)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what the system says about a file into wrong use of ``-o``.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"-o: cannot write {str(path)!r} ({error.strerror or error}); give a file in a folder "
            "that can be written"
        ) from error


@contextmanager
def replaced_file(path: Path) -> Iterator[BinaryIO]:
    """Give a draft that takes the place of ``path`` once it was written without an error."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
