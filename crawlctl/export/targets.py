"""Where an export goes: standard output, a file that grows, or one replaced when all is written."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
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
    """Give a draft that takes the place of ``path`` once it was written without an error.

    Links are followed: what they lead to is replaced, not they. A device, a pipe or anything else
    that is no regular file is written into directly, as it must outlive us.

    Raises:
        OSError: it cannot be written.
    """
    if _is_special(path):
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    draft = target.with_name(f".{target.name}.{token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            yield file
            make_final(file)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return False


def make_final(file: BinaryIO) -> None:
    """Have all that was written on disk, where it is for a disk."""
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # pipes and most devices refuse fsync
        os.fsync(file.fileno())
