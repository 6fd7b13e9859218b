"""A folder of Parquet files as one reader of a consumer group: each record once, whenever it dies.

A Parquet file cannot grow, so what is made final together becomes a part of its own. A part is
written aside and synced, then the checkpoint counts it and names the last id of each shard, then it
gets its name. So parts that can be seen are final, and a part that was counted but not yet named
when the process died gets its name at the next start. Names that begin with an underscore are no
data to whoever reads such folders.

Parts may be moved away between two runs.
"""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from common.embedded.folder import write_atomically
from common.model.errors import RefusedError, UsageError
from crawlctl.export.consumed_file import Source
from crawlctl.export.parquet import ParquetWriter
from crawlctl.export.targets import make_final, naming
from crawlctl.sink import START

_VERSION: Final = 1
_CHECKPOINT: Final = "_checkpoint"
_LOCK: Final = "_lock"


class _Checkpoint(msgspec.Struct, kw_only=True):
    """A moment at which the parts and the ids agree."""

    version: int = _VERSION
    source: Source
    reader: str
    parts: int = 0
    last: dict[int, str] = {}
    """Shard -> id of its last entry in the parts."""


class ConsumedParts:
    """A folder that gets a part for each step of its reader. To be closed."""

    settle_every_s = 10.0
    """Many small files would be slow to read."""

    def __init__(self, folder: Path, source: Source) -> None:
        """Open the folder, made where there is none, as its checkpoint left it.

        Raises:
            RefusedError: it is filled from elsewhere, not ours, or in use.
            UsageError: it cannot be written, or is no folder.
        """
        self._folder = folder.absolute()
        self._records: list[bytes] = []
        if self._folder.exists() and not self._folder.is_dir():
            raise UsageError(
                f"-o: {folder} is a file; parquet by --consume takes a folder of parts"
            )
        with naming(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            is_ours = (self._folder / _CHECKPOINT).exists()
            if not is_ours and {path.name for path in self._folder.iterdir()} - {_LOCK}:
                raise RefusedError(
                    f"-o: {folder} holds files that export --consume did not write; give another "
                    "folder"
                )
            self._guard = self._locked()
            try:
                self._state = self._load(source)
                self._name_counted_part()
                self._save_checkpoint()
            except BaseException:
                self._guard.close()
                raise

    @property
    def reader(self) -> str:
        """Under which name this folder's records are read."""
        return self._state.reader

    def last(self, shard: int) -> str:
        """Return the id of the last entry of a shard that was written."""
        return self._state.last.get(shard, START)

    def write(self, shard: int, records: Sequence[bytes], *, last: str) -> None:
        """Take records of one shard, of which the last has this id."""
        self._records += records
        self._state.last[shard] = last

    def save(self) -> None:
        """Make all that was taken final."""
        if self._records:
            with self._draft(self._state.parts + 1).open("wb") as file:
                writer = ParquetWriter(file)
                writer.write(self._records)
                writer.close()
                make_final(file)
            self._records = []
            self._state.parts += 1
        self._save_checkpoint()
        self._name_counted_part()

    def close(self) -> None:
        """Let go of the folder; what was not saved is given again to the next start."""
        self._guard.close()

    def _draft(self, number: int) -> Path:
        return self._folder / f"_part-{number:06d}.parquet"

    def _name_counted_part(self) -> None:
        counted = self._draft(self._state.parts)
        for draft in self._folder.glob("_part-*.parquet"):
            if draft == counted:
                draft.replace(draft.with_name(draft.name.removeprefix("_")))
            else:
                draft.unlink()

    def _save_checkpoint(self) -> None:
        write_atomically(self._folder / _CHECKPOINT, msgspec.json.encode(self._state))

    def _load(self, source: Source) -> _Checkpoint:
        path = self._folder / _CHECKPOINT
        try:
            state = msgspec.json.decode(path.read_bytes(), type=_Checkpoint)
        except FileNotFoundError:
            return _Checkpoint(source=source, reader=f"{socket.gethostname()}:{self._folder}")
        except msgspec.DecodeError as error:
            raise RefusedError(f"-o: {path} is damaged ({error}); give another folder") from error
        if state.version != _VERSION or state.source != source:
            raise RefusedError(
                f"-o: {self._folder} is filled by group {state.source.group} from job "
                f"{state.source.job}; repeat the command as it was, or give another folder"
            )
        return state

    def _locked(self) -> BinaryIO:
        """Return a file of the folder, open under a lock that dies with the process."""
        file = (self._folder / _LOCK).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise RefusedError(
                f"-o: {self._folder} is in use by another export; end that one first"
            ) from None
        return file
