"""The master's wish: which worker should own which tasks.

One key a worker and one key with the version of the whole; the version is written last. All of it
is guarded by the master's term and by the version key's revision, so neither a former master nor a
late copy of an older publication can change anything.

A snapshot that fits into one transaction is swapped whole. Not promised: that a reader between two
transactions of a larger one sees one version. An assignment is a wish; a worker that follows half
of it takes locks all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from common.coord.client import Etcd
from common.coord.codec import decoded, encoded
from common.coord.election import check_term
from common.coord.keys import Keys
from common.coord.wire import (
    Delete,
    Get,
    Put,
    Snapshot,
    created_at,
    modified_at,
)
from common.model.errors import UnknownOutcome
from common.model.ids import JobId, NodeId, Term

_TRIES: Final = 4
# etcd takes 128 operations and 1.5 MB in a request.
_OPERATIONS_PER_TXN: Final = 100  # and the version
_BYTES_PER_TXN: Final = 500_000


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker should own."""

    version: int
    """The snapshot's version in which it last changed."""
    tasks: dict[str, list[int]]
    """Job to shards, in ascending order."""


class SnapshotVersion(msgspec.Struct, frozen=True, kw_only=True):
    """What the version key holds."""

    version: int


class Assignments:
    """The assignments of one cluster."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self._etcd = etcd
        self._keys = keys

    async def publish(
        self,
        wishes: Mapping[NodeId, Mapping[JobId, Sequence[int]]],
        *,
        version: int,
        term: Term,
    ) -> None:
        """Make ``wishes`` the assignment; writes what changed and deletes who is not named.

        Raises:
            NotMaster: the term is over.
            CoordUnavailable: etcd does not answer; publish again.
            UnknownOutcome: the same for this call, though some of it may have been written.
        """
        for _ in range(_TRIES):
            snapshot = await self._etcd.get_prefix(self._keys.assignments)
            changes = list(self._changes(snapshot, wishes, version=version))
            try:
                if await self._write(snapshot, changes, version=version, term=term):
                    return
            except UnknownOutcome:
                # What was applied shows in the next snapshot; what is late fails on its guards.
                continue
        raise UnknownOutcome(f"assignment version {version} could not be confirmed; publish again")

    async def load(self) -> tuple[int, dict[NodeId, Assignment]]:
        """Return the version (0: nothing was ever published) and each worker's assignment."""
        snapshot = await self._etcd.get_prefix(self._keys.assignments)
        return self._version(snapshot), self._assigned(snapshot)

    def _version(self, snapshot: Snapshot) -> int:
        found = snapshot.items.get(self._keys.assignment_version)
        return 0 if found is None else decoded(found, SnapshotVersion).version

    def _assigned(self, snapshot: Snapshot) -> dict[NodeId, Assignment]:
        prefix = self._keys.assigned_nodes
        return {
            NodeId(key[len(prefix) :]): decoded(kv, Assignment)
            for key, kv in snapshot.items.items()
            if key.startswith(prefix)
        }

    def _changes(
        self,
        snapshot: Snapshot,
        wishes: Mapping[NodeId, Mapping[JobId, Sequence[int]]],
        *,
        version: int,
    ) -> Iterable[Put | Delete]:
        assigned = self._assigned(snapshot)
        for node in sorted(set(assigned) | set(wishes)):
            key = self._keys.assignment(node)
            if node not in wishes:
                yield Delete(key)
                continue
            tasks = {str(job): sorted(shards) for job, shards in wishes[node].items() if shards}
            if node not in assigned or assigned[node].tasks != tasks:
                yield Put(key, encoded(Assignment(version=version, tasks=tasks)))

    async def _write(
        self,
        snapshot: Snapshot,
        changes: Sequence[Put | Delete],
        *,
        version: int,
        term: Term,
    ) -> bool:
        """Write the changes, then the version; False if the version key moved meanwhile."""
        pointer = self._keys.assignment_version
        seen = snapshot.items.get(pointer)
        guards = [
            created_at(self._keys.election, term),
            modified_at(pointer, seen.mod_revision if seen else 0),
        ]
        final = Put(pointer, encoded(SnapshotVersion(version=version)))
        chunks: list[list[Put | Delete]] = list(_chunks(changes)) or [[]]
        chunks[-1].append(final)
        if not changes and self._version(snapshot) == version:
            # Nothing to write, but whether the term is over must be noticed all the same.
            chunks = [[]]
        for chunk in chunks:
            reply = await self._etcd.txn(
                compare=guards, success=chunk, failure=[Get(self._keys.election)]
            )
            if not reply.succeeded:
                check_term(reply.one(0), term)
                return False
        return True


def _chunks(changes: Sequence[Put | Delete]) -> Iterable[list[Put | Delete]]:
    chunk: list[Put | Delete] = []
    size_bytes = 0
    for change in changes:
        change_bytes = len(change.value) if isinstance(change, Put) else 0
        is_full = size_bytes + change_bytes > _BYTES_PER_TXN or len(chunk) >= _OPERATIONS_PER_TXN
        if chunk and is_full:
            yield chunk
            chunk, size_bytes = [], 0
        chunk.append(change)
        size_bytes += change_bytes
    if chunk:
        yield chunk
