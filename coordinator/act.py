"""Carrying out single steps, each guarded by the term and by the job revision it was decided at.

What a step learns (a newer record, a fence that is up, a write in doubt) goes into the job's entry;
the next cycle decides from there. A write without an answer is shut out before anything else is
decided: the record is stored again unchanged, and its newer revision becomes every shard's fence.

A refusal as stale has two causes, told apart by reading etcd: another term, upon which this master
must step down, or a newer job record, which is taken over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

import msgspec
import structlog

from common.coord import Coord, Session, Stale
from common.frontier import MasterFence, Refusal, ShardState, shard_state
from common.model.errors import (
    CoordUnavailable,
    FrontierUnavailable,
    NotMaster,
    ScriptBug,
    UnknownOutcome,
)
from common.model.ids import Task, Term
from common.model.job import Job, JobState
from common.runtime.clock import utc_now
from coordinator.observe import Entry, Observer, leave_alone
from coordinator.plan import (
    Action,
    ApplyState,
    CreateShards,
    Finish,
    Grant,
    JobAction,
    MarkDamaged,
    MarkDeparted,
    OfferSeeds,
    Publish,
    Rewrite,
    StartJob,
)

log = structlog.get_logger()

SEEDING_S = 0.2
"""Time a cycle spends on offering seeds, over all jobs."""
_CHUNKS_AT_ONCE = 32
_SEEDS_WAIT_S = 0.3


class Actor:
    """Carries out steps in one term, while the session is live."""

    def __init__(self, coord: Coord, session: Session, observer: Observer, *, term: Term) -> None:
        self._coord = coord
        self._session = session
        self._observer = observer
        self._term = term

    async def perform(self, actions: Sequence[Action]) -> list[str]:
        """Carry out the steps in order and return what was done, for the report.

        Raises:
            NotMaster: the term is over.
            LeaseLost: the session is; stop at once.
            CoordUnavailable: etcd did not answer; what was left out is planned again.
            FrontierUnavailable: Redis did not answer; the same.
        """
        done: list[str] = []
        seeding = sum(isinstance(action, OfferSeeds) for action in actions)
        for action in actions:
            self._session.check()
            match action:
                case Publish():
                    done.append(await self._publish(action))
                case MarkDeparted():
                    done.append(await self._mark_departed(action))
                case _:
                    entry = self._observer.entries.get(action.job)
                    if entry is None or entry.stored.revision != action.revision:
                        continue  # an earlier step of this cycle brought a newer record
                    try:
                        said = await self._perform_on(entry, action, seeding=seeding)
                    except FrontierUnavailable:
                        # What was sent may still be carried out, after the next look and whatever
                        # is decided from it: a late "open" would undo a seal, a late grant would
                        # count twice.
                        self._doubt(entry)
                        raise
                    except ScriptBug as error:
                        leave_alone(entry)
                        log.error("job.stuck", job=entry.id, error=str(error))  # noqa: TRY400
                        continue
                    if said:
                        done.append(said)
        return done

    async def _perform_on(self, entry: Entry, action: JobAction, *, seeding: int) -> str | None:
        match action:
            case CreateShards():
                return await self._create(entry)
            case ApplyState():
                return await self._apply(entry, ShardState(action.state))
            case StartJob():
                return await self._start(entry)
            case OfferSeeds():
                return await self._offer_seeds(entry, limit_s=SEEDING_S / seeding)
            case Grant():
                return await self._grant(entry, action)
            case Finish():
                return await self._finish(entry)
            case MarkDamaged():
                return await self._mark_damaged(entry, action.reason)
            case Rewrite():
                await self._replace(entry, lambda job: job)
                return f"rewrote job {entry.id}, a write to which had no answer"
            case _:
                assert_never(action)

    # ----------------------------------------------------------------------------- shards of a job

    async def _create(self, entry: Entry) -> str:
        state = shard_state(entry.stored.job.state)
        refusals = await entry.frontier.create(fence=self._fence(entry), state=state)
        await self._take_refusals(entry, refusals)
        return f"created the shards of job {entry.id}"

    async def _apply(self, entry: Entry, state: ShardState) -> str | None:
        entry.forget_passes()
        refusals = await entry.frontier.apply(state, fence=self._fence(entry))
        await self._take_refusals(entry, refusals)
        return f"set the shards of job {entry.id} to {state.value}"

    async def _offer_seeds(self, entry: Entry, *, limit_s: float) -> str | None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            # Several chunks in one offer: each shard is called once for all of them.
            chunks = await entry.frontier.staged(limit=_CHUNKS_AT_ONCE)
            if not chunks:
                break
            self._session.check()
            urls = [url for _, chunk in chunks for url in chunk]
            match await entry.frontier.offer_seeds(urls):
                case Refusal.RUN | Refusal.RETRY:
                    # Sealed, or a restarted server's shard that its owner has yet to adopt.
                    entry.due_at_s = time.monotonic() + _SEEDS_WAIT_S
                    return f"waiting for shards of job {entry.id} to take its seeds"
                case Refusal():
                    # Closed by a record that is newer than ours, or gone: the chunks stay parked,
                    # and the next look at record and shards decides what becomes of the job.
                    await self._reread(entry)
                    return f"shards of job {entry.id} take no seeds"
            # All of these URLs are in, so the chunks may go; a successor that finds one still
            # there offers it again, which changes nothing.
            numbers = [number for number, _ in chunks]
            refusal = await entry.frontier.unstage(*numbers, fence=self._fence(entry))
            if refusal is not None:
                await self._take_refusals(entry, [refusal])
                return None
        return f"offered seeds of job {entry.id}"

    async def _grant(self, entry: Entry, action: Grant) -> str | None:
        seen = next(one.grant for one in entry.stats or () if one.shard == action.shard)
        answer = await entry.frontier.grant(
            action.shard, action.amount, fence=self._fence(entry), seen=seen
        )
        if isinstance(answer, Refusal):
            await self._take_refusals(entry, [answer])
        return None

    # --------------------------------------------------------------------------------- job records

    async def _start(self, entry: Entry) -> str | None:
        def started(job: Job) -> Job:
            at = job.started_at or utc_now()
            return msgspec.structs.replace(job, state=JobState.RUNNING, started_at=at)

        return f"started job {entry.id}" if await self._replace(entry, started) else None

    async def _finish(self, entry: Entry) -> str | None:
        # 1. From here on, whatever happens, the state is applied again: that undoes every seal.
        stats = entry.stats or ()
        entry.forget_passes()
        # 2. Each shard is sealed only if empty and as both passes saw it; then all are re-read.
        if not await entry.frontier.seal(stats, fence=self._fence(entry)):
            return None
        # 3. A pause, a cancel or new seeds since the passes have moved the job's revision.
        self._session.check()

        def finished(job: Job) -> Job:
            return msgspec.structs.replace(job, state=JobState.FINISHED, finished_at=utc_now())

        return f"finished job {entry.id}" if await self._replace(entry, finished) else None

    async def _mark_damaged(self, entry: Entry, reason: str) -> str | None:
        def damaged(job: Job) -> Job:
            return msgspec.structs.replace(
                job, state=JobState.DAMAGED, reason=reason, finished_at=utc_now()
            )

        if not await self._replace(entry, damaged):
            return None
        log.error("job.damaged", job=entry.id, reason=reason)
        return f"marked job {entry.id} as damaged"

    async def _replace(self, entry: Entry, change: Callable[[Job], Job]) -> bool:
        """Change a job record at the revision the step was decided at; tell whether it was."""
        job, revision = entry.stored
        try:
            answer = await self._coord.jobs.replace(change(job), expected=revision, term=self._term)
        except UnknownOutcome:
            self._doubt(entry)
            await self._reread(entry)
            return False
        if isinstance(answer, Stale):
            await self._reread(entry)
            return False
        entry.take(answer)
        return True

    # ------------------------------------------------------------------------------------- cluster

    async def _publish(self, action: Publish) -> str:
        observer = self._observer
        assigned = {
            Task(job, shard): node
            for node, jobs in action.wishes.items()
            for job, shards in jobs.items()
            for shard in shards
        }
        try:
            await self._coord.assignments.publish(
                action.wishes, version=action.version, term=self._term
            )
        except UnknownOutcome:
            observer.is_assignment_known = False
            raise
        observer.assigned, observer.version = assigned, action.version
        observer.placed = action.inputs
        log.info(
            "assignment.published", version=action.version, tasks=len(assigned),
            workers=len(action.wishes),
        )  # fmt: skip
        return f"published assignment {action.version}"

    async def _mark_departed(self, action: MarkDeparted) -> str:
        info = self._observer.roll.vanished[action.node]
        await self._coord.members.mark_departed(info, term=self._term)
        del self._observer.roll.vanished[action.node]
        log.warning("node.vanished", node=action.node, role=info.role)
        return f"noted that node {action.node} vanished"

    # ------------------------------------------------------------------------------------ refusals

    def _fence(self, entry: Entry) -> MasterFence:
        return MasterFence(self._term, entry.stored.revision)

    def _doubt(self, entry: Entry) -> None:
        if not entry.stored.job.state.is_final:
            entry.memory = replace(entry.memory, doubtful=entry.stored.revision)

    async def _take_refusals(self, entry: Entry, refusals: Sequence[Refusal | None]) -> None:
        if Refusal.STALE in refusals:
            await self._take_stale(entry)
        elif not any(refusals) or entry.stored.job.state.is_final:
            entry.memory = replace(entry.memory, fenced=entry.stored.revision)
        # A missing shard of a live job is seen by the next look, which decides what that means.

    async def _take_stale(self, entry: Entry) -> None:
        leader = await self._coord.election.leader()
        if leader is None or leader.term != self._term:
            raise NotMaster("a shard of a job has seen a newer term")
        before = entry.stored.revision
        await self._reread(entry)
        if entry.stored.revision == before:
            leave_alone(entry)
            log.error(
                "job.refused", job=entry.id, revision=before,
                reason="its shards have seen a newer revision than etcd has",
                remedy="if etcd was restored from an older snapshot, submit the job again",
            )  # fmt: skip

    async def _reread(self, entry: Entry) -> None:
        try:
            stored = await self._coord.jobs.get(entry.id)
        except CoordUnavailable:
            # Without an answer the next step on this record is refused, or shut out as doubtful.
            return
        if stored is None:
            self._observer.entries.pop(entry.id, None)
        else:
            entry.take(stored)
