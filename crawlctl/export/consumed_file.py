"""The file of one reader of a consumer group: each record it was given once, whenever it dies.

Beside the file lies a checkpoint (``FILE.checkpoint``), as for the sink of ``crawl``: how long the
file was and the last id of each shard it held then. At start the file is cut to it. A record that
was given but not acknowledged comes again; the checkpoint tells whether the file has it.

A file that was moved away between two runs leaves its checkpoint behind and is begun anew: so it
may be rotated.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from common.embedded.folder import write_atomically
from common.model.errors import RefusedError
from crawlctl.export.formats import TextFormat
from crawlctl.export.targets import naming
from crawlctl.sink import START, open_at

_VERSION: Final = 1


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a file is filled from, and how."""

    cluster: str
    job: str
    group: str
    style: str


class _Checkpoint(msgspec.Struct, kw_only=True):
    """A moment at which the file and the ids agree."""

    version: int = _VERSION
    source: Source
    reader: str
    offset: int = 0
    """Bytes of the file."""
    last: dict[int, str] = {}
    """Shard -> id of its last entry in the file."""


class ConsumedFile:
    """A file that grows by what its reader is given. To be closed."""

    settle_every_s = 0.0

    def __init__(self, path: Path, source: Source, style: TextFormat) -> None:
        """Open the file where its checkpoint left it.

        Raises:
            RefusedError: it is filled from elsewhere, not ours, shorter than it was, or in use.
            UsageError: it cannot be written.
        """
        path = path.absolute()
        self._checkpoint = path.with_name(f"{path.name}.checkpoint")
        self._style = style
        with naming(path):
            self._guard = _locked(path)
            try:
                self._state = self._load(path, source)
                self._file = open_at(path, self._state.offset, remedy="give another file")
                self.save()  # from now on the file is known as ours, whatever it holds
            except BaseException:
                self._guard.close()
                raise

    @property
    def reader(self) -> str:
        """Under which name this file's records are read."""
        return self._state.reader

    def last(self, shard: int) -> str:
        """Return the id of the last entry of a shard that was written."""
        return self._state.last.get(shard, START)

    def write(self, shard: int, records: Sequence[bytes], *, last: str) -> None:
        """Write records of one shard, of which the last has this id."""
        if self._file.tell() == 0:
            self._file.write(self._style.head)
        self._file.write(self._style.encode(records))
        self._state.last[shard] = last

    def save(self) -> None:
        """Make all that was written final."""
        self._file.flush()
        # The order is what makes it safe: a checkpoint never speaks of bytes that may vanish.
        os.fsync(self._file.fileno())
        self._state.offset = self._file.tell()
        write_atomically(self._checkpoint, msgspec.json.encode(self._state))

    def close(self) -> None:
        """Close the file; what was not saved is cut off by the next start."""
        self._file.close()
        self._guard.close()

    def _load(self, path: Path, source: Source) -> _Checkpoint:
        try:
            state = msgspec.json.decode(self._checkpoint.read_bytes(), type=_Checkpoint)
        except FileNotFoundError:
            if path.stat().st_size:
                raise RefusedError(
                    f"-o: {path} exists and was not written by export --consume; give another file"
                ) from None
            return _Checkpoint(source=source, reader=f"{socket.gethostname()}:{path}")
        except msgspec.DecodeError as error:
            raise RefusedError(
                f"-o: {self._checkpoint} is damaged ({error}); give another file"
            ) from error
        if state.version != _VERSION or state.source != source:
            raise RefusedError(
                f"-o: {path} is filled by group {state.source.group} from job {state.source.job} "
                f"as {state.source.style}; repeat the command as it was, or give another file"
            )
        if not path.stat().st_size:
            state.offset = 0
        return state


def _locked(path: Path) -> BinaryIO:
    """Return the file, made where there was none, open under a lock that dies with the process."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RefusedError(f"-o: {path} is in use by another export; end that one first") from None
    return file
