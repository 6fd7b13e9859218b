"""Results written to one file, each exactly once, whenever the writer dies.

Beside the file lies a checkpoint: how long the file was, and the last stream entry of each shard it
held then, together with what was counted on the way. It is replaced atomically, after the data it
speaks of is on disk. At start the file is cut to the checkpoint and reading goes on behind its
entries: what was written after it is read again, what was written before it is not.

Owns both files; one process at a time (the caller holds a lock on the folder). Not promised: the
order of records.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from common.embedded.folder import write_atomically
from common.model.errors import RefusedError
from common.model.records import Outcome

START = "0-0"
"""Before every entry of a stream."""
_VERSION = 1
_PAGE = 500
"""Records read at once from a shard: about half a megabyte."""


class Tally(msgspec.Struct, kw_only=True):
    """What the records written so far add up to."""

    records: int = 0
    answered_seeds: int = 0
    """Records of depth 0 that got a response, or needed none."""
    errors: dict[str, int] = {}
    """Error code -> records that failed or died of it."""
    statuses: dict[int, int] = {}
    """HTTP status -> records with it."""


class Checkpoint(msgspec.Struct, kw_only=True):
    """A moment at which file, stream positions and counts agree."""

    version: int = _VERSION
    offset: int = 0
    """Bytes of the file."""
    last: dict[int, str] = {}
    """Shard -> id of its last entry in the file."""
    tally: Tally = msgspec.field(default_factory=Tally)
    active_s: float = 0.0
    """How long the crawl was at work, over all its starts."""


class ResultSource(Protocol):
    """Where results come from: ``JobFrontier``."""

    async def results(self, shard: int, *, after: str, count: int) -> list[tuple[str, bytes]]:
        """Return up to ``count`` (stream id, JSON record) after an id."""
        ...


class _Error(msgspec.Struct, frozen=True):
    code: str


class Facts(msgspec.Struct, frozen=True):
    """The few fields of a record that are counted here."""

    outcome: Outcome
    depth: int
    status: int | None = None
    error: _Error | None = None


ANSWERED = (Outcome.FETCHED, Outcome.NOT_MODIFIED, Outcome.REDIRECTED, Outcome.DENIED)
"""Outcomes for which somebody answered, or nobody had to."""
decode_facts = msgspec.json.Decoder(Facts).decode


def is_answered_seed(facts: Facts) -> bool:
    """Tell whether this is a seed that got a response, or needed none."""
    return facts.depth == 0 and (facts.status is not None or facts.outcome in ANSWERED)


class Sink:
    """The writer of one results file."""

    def __init__(self, file: Path, checkpoint: Path) -> None:
        """Open the file where its checkpoint left it.

        Raises:
            RefusedError: the file is shorter than it was: somebody else changed it.
        """
        self._path = checkpoint
        self.state = _load(checkpoint)
        self._file = open_at(file, self.state.offset, remedy="give --fresh to start over")

    @property
    def tally(self) -> Tally:
        """What was written so far."""
        return self.state.tally

    def after(self, shard: int) -> str:
        """Return the id behind which a shard's next entries are."""
        return self.state.last.get(shard, START)

    def append(self, shard: int, entries: Iterable[tuple[str, bytes]]) -> None:
        """Write entries of one shard, in their order."""
        for entry, record in entries:
            self._file.write(record + b"\n")
            self.state.last[shard] = entry
            self._count(decode_facts(record))

    async def pull(self, source: ResultSource, shards: int) -> int:
        """Write all that every shard has by now; return how many records that was."""
        before = self.tally.records
        for shard in range(shards):
            while True:
                entries = await source.results(shard, after=self.after(shard), count=_PAGE)
                self.append(shard, entries)
                if len(entries) < _PAGE:
                    break
        return self.tally.records - before

    def save(self, *, active_s: float) -> None:
        """Make all that was written so far final."""
        self._file.flush()
        # The order is what makes it safe: a checkpoint never speaks of bytes that may vanish.
        os.fsync(self._file.fileno())
        self.state.offset = self._file.tell()
        self.state.active_s = active_s
        write_atomically(self._path, msgspec.json.encode(self.state))

    def close(self) -> None:
        """Close the file; what was not saved is cut off by the next start."""
        self._file.close()

    def _count(self, facts: Facts) -> None:
        tally = self.state.tally
        tally.records += 1
        if is_answered_seed(facts):
            tally.answered_seeds += 1
        if facts.status is not None:
            tally.statuses[facts.status] = tally.statuses.get(facts.status, 0) + 1
        if facts.error is not None:
            tally.errors[facts.error.code] = tally.errors.get(facts.error.code, 0) + 1


def _load(path: Path) -> Checkpoint:
    try:
        state = msgspec.json.decode(path.read_bytes(), type=Checkpoint)
    except FileNotFoundError:
        return Checkpoint()
    except msgspec.DecodeError as error:
        raise RefusedError(
            f"-o: {path} is damaged ({error}); give --fresh to start over"
        ) from error
    if state.version != _VERSION:
        raise RefusedError(
            f"-o: {path} was written by another version of crawlctl; use that one, or give --fresh"
        )
    return state


def open_at(path: Path, offset: int, *, remedy: str) -> BinaryIO:
    """Open a file to go on at ``offset``, cutting what was written behind it.

    Raises:
        RefusedError: it is shorter than that; the message ends with the remedy.
    """
    file = path.open("r+b" if path.exists() else "w+b")
    length = file.seek(0, os.SEEK_END)
    if length < offset:
        file.close()
        raise RefusedError(
            f"-o: {path} has {length} bytes but had {offset} when it was last written to; it was "
            f"changed by others, so {remedy}"
        )
    file.truncate(offset)
    file.seek(offset)
    return file
