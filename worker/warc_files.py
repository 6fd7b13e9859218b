"""WARC files on disk: made, finished, and mended where their writer was killed.

A file that is being written has a mark beside it (``NAME.open``) and a kernel lock that dies with
its writer. A mark without a lock is a file whose writer was killed: it is cut behind its last whole
record, by whichever worker starts next on the folder, and its mark goes. What a result record
points to is never cut: it was on disk before the record was.
"""

from __future__ import annotations

import fcntl
import os
import threading
import zlib
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Final

SUFFIX: Final = ".warc.gz"
MARK: Final = ".open"
_CHUNK_BYTES: Final = 1_048_576


class WarcFile:
    """A file being written: appended to, made durable, finished."""

    def __init__(self, folder: Path, *, job: str, node: str, serial: int) -> None:
        """Make a new file under a name of its own.

        Raises:
            FileExistsError: the name is taken: another serial is needed.
            OSError: the folder cannot be written.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")[:-3] + "Z"
        self.path = folder / f"{job}-{stamp}-{serial:05d}-{node}{SUFFIX}"
        self._file = FileIO(str(self.path), "xb")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _mark_of(self.path).touch()
            _sync_folder(folder)
        except BaseException:
            self.path.unlink(missing_ok=True)
            self._file.close()
            raise
        self.size = 0

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self.path.name

    def append(self, data: bytes) -> int:
        """Write at the end; return the offset at which ``data`` begins.

        Raises:
            OSError: it is not, or not all, written; nothing may follow it.
        """
        offset, view = self.size, memoryview(data)
        while view:
            view = view[self._file.write(view) or 0 :]
        self.size += len(data)
        return offset

    def descriptor(self) -> int:
        """Return a descriptor of the caller's own, to make the file durable by."""
        return os.dup(self._file.fileno())

    def finish(self) -> None:
        """Close a file that is whole and durable."""
        _mark_of(self.path).unlink(missing_ok=True)
        self._file.close()

    def abandon(self) -> None:
        """Close a file that may not be whole: it stays marked."""
        self._file.close()


def make_durable(descriptors: list[int]) -> None:
    """Bring what was written to disk, and close the descriptors. Blocks.

    Raises:
        OSError: it is not known to be on disk.
    """
    try:
        for number in descriptors:
            os.fsync(number)
    finally:
        for number in descriptors:
            os.close(number)


def mend(folder: Path, stop: threading.Event) -> list[str]:
    """Cut files whose writer was killed behind their last whole record. Blocks; may take seconds.

    Args:
        folder: where they lie.
        stop: set it to leave the rest to others.

    Returns:
        The names of the files that were looked through.
    """
    mended = []
    for mark in sorted(folder.glob(f"*{SUFFIX}{MARK}")):
        path = mark.with_name(mark.name.removesuffix(MARK))
        try:
            with path.open("r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                end = _end_of_last_record(file, stop)
                if end is None:
                    break
                file.truncate(end)
                os.fsync(file.fileno())
                mark.unlink(missing_ok=True)
                mended.append(path.name)
        except BlockingIOError:
            continue  # its writer lives, or another worker mends it
        except FileNotFoundError:
            mark.unlink(missing_ok=True)
    return mended


def _end_of_last_record(file: FileIO, stop: threading.Event) -> int | None:
    """Return where the last whole gzip member ends; None when told to stop."""
    end = position = 0
    member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while data := file.read(_CHUNK_BYTES):
        position += len(data)
        while data:
            if stop.is_set():
                return None
            try:
                member.decompress(data)
            except zlib.error:
                return end
            if not member.eof:
                break
            data = member.unused_data
            end = position - len(data)
            member = zlib.decompressobj(zlib.MAX_WBITS | 16)
    return end


def _mark_of(path: Path) -> Path:
    return path.with_name(path.name + MARK)


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
