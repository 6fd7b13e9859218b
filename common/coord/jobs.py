"""Jobs in etcd, each changed by compare-and-swap on its own revision.

Whoever decides something about a job decides it on the revision it has read; a decision on an
older one is refused. A master's decision is guarded by its term as well. Ids are never used again:
a deleted job leaves a key that says so.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from common.coord.client import Etcd
from common.coord.codec import decoded, encoded
from common.coord.election import check_term
from common.coord.keys import Keys
from common.coord.log import logger
from common.coord.settle import settled
from common.coord.wire import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Put,
    absent,
    created_at,
    modified_at,
)
from common.model.errors import CrawlerError
from common.model.ids import JobId, Revision, Term
from common.model.job import Job
from common.runtime.clock import utc_now


class StoredJob(NamedTuple):
    """A job and the revision it was last changed at."""

    job: Job
    revision: Revision


class Exists(NamedTuple):
    """There is a job with this id already; whether it is the same one is for the caller to see."""

    stored: StoredJob


class Reused(NamedTuple):
    """The id belonged to a job that was deleted."""


class Stale(NamedTuple):
    """The job was changed meanwhile (``current``), or deleted (None): read and decide again."""

    current: StoredJob | None


class DeletedJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a deleted job."""

    deleted_at: str
    """RFC 3339."""


def stored_job(kv: KeyValue) -> StoredJob:
    """Read a job from its key, as a mirror of the jobs holds it.

    Raises:
        CrawlerError: the key does not hold a job this version can read.
    """
    return StoredJob(decoded(kv, Job), Revision(kv.mod_revision))


class JobStore:
    """The jobs of one cluster."""

    def __init__(self, etcd: Etcd, keys: Keys) -> None:
        self._etcd = etcd
        self._keys = keys

    async def create(self, job: Job) -> StoredJob | Exists | Reused:
        """Store a new job.

        Raises:
            CoordUnavailable: etcd does not answer; not stored.
            UnknownOutcome: maybe stored, maybe later; create it again to find out.
        """
        key, deleted = self._keys.job(job.id), self._keys.deleted_job(job.id)
        value = encoded(job)
        done = await settled(
            self._etcd,
            compare=[absent(key), absent(deleted)],
            success=[Put(key, value)],
            failure=[Get(key)],
        )
        if done.reply.succeeded:
            return StoredJob(job, Revision(done.reply.revision))
        found = done.reply.one(0)
        if found is None:
            return Reused()
        if done.is_repeated and found.value == value:
            return stored_job(found)
        return Exists(stored_job(found))

    async def get(self, job_id: JobId | str) -> StoredJob | None:
        """Read a job as it is now; None if there is none."""
        found = await self._etcd.get(self._keys.job(job_id))
        return None if found is None else stored_job(found)

    async def was_deleted(self, job_id: JobId | str) -> bool:
        """Tell whether there was a job of this id once that was deleted."""
        return await self._etcd.get(self._keys.deleted_job(job_id)) is not None

    async def list(self) -> list[StoredJob]:
        """Read every job as they are now, in order of their creation.

        A job this version cannot read is left out and logged; it must not hide the others.
        """
        snapshot = await self._etcd.get_prefix(self._keys.jobs)
        found = []
        for kv in snapshot.items.values():
            try:
                found.append(stored_job(kv))
            except CrawlerError as error:
                logger().error("job.unreadable", key=kv.key, error=str(error))
        return sorted(found, key=lambda one: (one.job.created_at, one.job.id))

    async def replace(
        self, job: Job, *, expected: Revision, term: Term | None = None
    ) -> StoredJob | Stale:
        """Store a changed job if nobody changed it since ``expected``.

        Args:
            job: the job with its changes.
            expected: the revision the decision was made on.
            term: a master's term; must not be over.

        Raises:
            NotMaster: the term is over; nothing was stored.
            CoordUnavailable: etcd does not answer; not stored.
            UnknownOutcome: maybe stored, maybe later; read the job again.
        """
        key, value = self._keys.job(job.id), encoded(job)
        guards: list[Compare] = [modified_at(key, expected)]
        if term is not None:
            guards.append(created_at(self._keys.election, term))
        done = await settled(
            self._etcd,
            compare=guards,
            success=[Put(key, value)],
            failure=[Get(key), Get(self._keys.election)],
        )
        if done.reply.succeeded:
            return StoredJob(job, Revision(done.reply.revision))
        found = done.reply.one(0)
        if done.is_repeated and found is not None and found.value == value:
            return stored_job(found)
        if term is not None:
            check_term(done.reply.one(1), term)
        return Stale(None if found is None else stored_job(found))

    async def delete(self, job_id: JobId | str, *, expected: Revision) -> bool:
        """Delete a job if nobody changed it since ``expected``; its id is not used again.

        Returns:
            False if it was changed or deleted meanwhile; nothing was deleted by this call then.

        Raises:
            CoordUnavailable: etcd does not answer; not deleted.
            UnknownOutcome: maybe deleted, maybe later; read the job again.
        """
        key, deleted = self._keys.job(job_id), self._keys.deleted_job(job_id)
        done = await settled(
            self._etcd,
            compare=[modified_at(key, expected)],
            success=[Delete(key), Put(deleted, encoded(DeletedJob(deleted_at=utc_now())))],
            failure=[Get(key)],
        )
        return done.reply.succeeded or (done.is_repeated and done.reply.one(0) is None)
