"""Everything a test of the master needs: masters as tasks, jobs, and a worker that obeys a script.

The worker is real where it matters: it joins under a session, takes the locks it is assigned, and
works on its shards by their own interface. Only the web is made up: a dictionary of pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import msgspec

import coordinator
from common.coord import Acquired, Coord, EtcdOptions, NodeInfo, Session, StoredJob, connect
from common.frontier import FrontierClient, JobFrontier, RedisOptions, shard_state
from common.frontier.items import Item
from common.frontier.offers import Offers
from common.frontier.owner import TaskFrontier, item_of
from common.frontier.replies import Claimed, Refusal
from common.frontier.settling import Finished
from common.model import counters
from common.model.errors import FrontierUnavailable
from common.model.ids import JobId, NodeId, Task, Token
from common.model.job import Job, JobSpec, JobState
from common.model.records import Outcome
from common.runtime.clock import utc_now
from common.runtime.settings import Settings
from common.web import url
from tests.support.waiting import until

LEASE_TTL_S = 3.0
Pages = Mapping[str, Sequence[str]]
"""The web: which links each page has."""


class Master:
    """A master running as a task of the test."""

    def __init__(self, settings: Settings, name: str, ttl_s: float) -> None:
        self.stop = asyncio.Event()
        self.task = asyncio.create_task(
            coordinator.run(settings, node_id=name, lease_ttl_s=ttl_s, http=None, stop=self.stop)
        )

    async def end(self) -> None:
        """Leave in good order; raises what the master raised."""
        self.stop.set()
        async with asyncio.timeout(60):
            await self.task

    async def kill(self) -> None:
        """Be gone without a word: nothing is resigned, the lease runs out."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


class Rig:
    """One cluster of a test."""

    def __init__(self, coord: Coord, client: FrontierClient, settings: Settings) -> None:
        self.coord = coord
        self.client = client
        self.settings = settings
        self.masters: list[Master] = []
        self.workers: list[Worker] = []

    @classmethod
    async def connect(cls, etcd: str, redis: str, *, cluster: str) -> Rig:
        coord = await connect(EtcdOptions(endpoints=(etcd,)), cluster=cluster)
        client = FrontierClient(RedisOptions(urls=(redis,)))
        settings = Settings(etcd_endpoints=(etcd,), redis_urls=(redis,), cluster=cluster)
        return cls(coord, client, settings)

    @classmethod
    @asynccontextmanager
    async def open(cls, etcd: str, redis: str, *, cluster: str) -> AsyncIterator[Rig]:
        rig = await cls.connect(etcd, redis, cluster=cluster)
        try:
            yield rig
        finally:
            await rig.close()

    async def close(self) -> None:
        for worker in self.workers:
            await worker.end()
        for master in self.masters:
            await master.kill()
        await self.client.close()
        await self.coord.close()

    def master(self, name: str = "m1", *, ttl_s: float = LEASE_TTL_S) -> Master:
        master = Master(self.settings, name, ttl_s)
        self.masters.append(master)
        return master

    async def worker(self, pages: Pages, name: str = "w1") -> Worker:
        worker = Worker(self, NodeId(name), pages)
        self.workers.append(worker)
        await worker.begin()
        return worker

    def frontier(self, job: str, spec: JobSpec) -> JobFrontier:
        return JobFrontier(self.client, cluster=self.settings.cluster, job=JobId(job), spec=spec)

    async def submit(
        self,
        seeds: Sequence[str],
        *,
        job: str = "job",
        state: JobState = JobState.PENDING,
        chunk: int = 100,
        hand_over: bool = True,
        keep_open: bool = False,
        **spec: object,
    ) -> StoredJob:
        """Do what ``crawlctl submit`` does: create, stage, hand over."""
        made = msgspec.convert({"shards": 4, "delay": 0.0, **spec}, JobSpec)
        new = Job(
            id=job,
            spec=made,
            state=JobState.PENDING,
            seeds=-1,
            keep_open=keep_open,
            created_at=utc_now(),
        )
        stored = await self.coord.jobs.create(new)
        assert isinstance(stored, StoredJob)
        frontier = self.frontier(job, made)
        for number, start in enumerate(range(0, len(seeds), chunk)):
            await frontier.stage(number, seeds[start : start + chunk])
        if not hand_over:
            return stored
        return await self.change(job, seeds=len(seeds), state=state)

    async def change(self, job: str, **fields: object) -> StoredJob:
        """Change a job's record as the command line would."""
        while True:
            job_now, revision = await self.job(job)
            changed = msgspec.structs.replace(job_now, **fields)
            answer = await self.coord.jobs.replace(changed, expected=revision)
            if isinstance(answer, StoredJob):
                return answer

    async def job(self, job: str = "job") -> StoredJob:
        stored = await self.coord.jobs.get(JobId(job))
        assert stored is not None
        return stored

    async def until_state(
        self, state: JobState, *, job: str = "job", within_s: float = 60.0
    ) -> StoredJob:
        async def is_there() -> StoredJob | None:
            stored = await self.job(job)
            return stored if stored.job.state is state else None

        found = await until(is_there, within_s=within_s)
        assert found is not None
        return found

    async def counters(self, job: str = "job") -> dict[str, int]:
        spec = (await self.job(job)).job.spec
        return counters.add([one.counters for one in await self.frontier(job, spec).stats()])

    async def shard_states(self, job: str = "job") -> set[str]:
        spec = (await self.job(job)).job.spec
        stats = await self.frontier(job, spec).stats()
        return {"missing" if one.state is None else one.state.value for one in stats}

    async def until_shards(self, state: str, *, job: str = "job") -> None:
        async def are_there() -> bool:
            return await self.shard_states(job) == {state}

        await until(are_there)

    async def active_master(self) -> str | None:
        leader = await self.coord.election.leader()
        return None if leader is None else leader.node


class Worker:
    """Owns what it is assigned and "fetches" pages out of a dictionary."""

    def __init__(self, rig: Rig, node: NodeId, pages: Pages) -> None:
        self._rig = rig
        self._node = node
        self.pages = pages
        self.gate = asyncio.Event()
        """Cleared = claimed pages stay in flight."""
        self.gate.set()
        self.fetched: list[str] = []
        self.owned: set[Task] = set()
        self._tasks: dict[Task, asyncio.Task[None]] = {}
        self._tokens: dict[Task, Token] = {}
        self._life: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self.session = await Session.open(self._rig.coord.etcd, ttl_s=LEASE_TTL_S)
        self.info = NodeInfo(
            id=self._node, role="worker", state="ready", pid=1, host="here", started_at=utc_now()
        )
        await self._rig.coord.members.join(self.session, self.info)
        self._life = asyncio.create_task(self._live())

    async def set_state(self, state: str) -> None:
        await self.say(state=state)

    async def set_weight(self, weight: float) -> None:
        await self.say(weight=weight)

    async def say(self, **fields: object) -> None:
        """Publish something else of this worker."""
        self.info = msgspec.structs.replace(self.info, **fields)
        await self._rig.coord.members.update(self.session, self.info)

    async def end(self) -> None:
        """Stop and let the lease go at once, as if it had run out."""
        work = [task for task in (self._life, *self._tasks.values()) if task is not None]
        self._life = None
        for task in work:
            task.cancel()
        ends = await asyncio.gather(*work, return_exceptions=True)
        await self.session.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _live(self) -> None:
        coord = self._rig.coord
        while True:
            _, assigned = await coord.assignments.load()
            mine = assigned[self._node].tasks if self._node in assigned else {}
            wanted = {Task(JobId(job), shard) for job, shards in mine.items() for shard in shards}
            for task in self._tasks.keys() - wanted:
                await self._stop(task)
            for task in wanted - self._tasks.keys():
                name = coord.locks.task_name(task)
                answer = await coord.locks.acquire(self.session, name, owner=self._node)
                if isinstance(answer, Acquired):
                    self.owned.add(task)
                    self._tokens[task] = answer.token
                    self._tasks[task] = asyncio.create_task(self._work(task, answer))
            await asyncio.sleep(0.02)

    async def _stop(self, task: Task) -> None:
        work = self._tasks.pop(task)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        self.owned.discard(task)
        name = self._rig.coord.locks.task_name(task)
        await self._rig.coord.locks.release(name, self._tokens.pop(task))

    async def _work(self, task: Task, lock: Acquired) -> None:
        rig = self._rig
        spec = (await rig.job(task.job)).job.spec
        names = {"cluster": rig.settings.cluster, "spec": spec}
        shard = TaskFrontier(rig.client, task=task, token=lock.token, **names)  # type: ignore[arg-type]
        offers = Offers(rig.client, job=task.job, **names)  # type: ignore[arg-type]
        is_adopted = False
        while True:
            await asyncio.sleep(0.01)
            try:
                if not is_adopted:
                    run = await rig.client.current_run("any")
                    job, revision = await rig.job(task.job)
                    await shard.adopt(run, state=shard_state(job.state), revision=revision)
                    await shard.recover((), dead_below=lock.token)
                is_adopted = await self._claim(shard, offers)
            except FrontierUnavailable:
                is_adopted = False

    async def _claim(self, shard: TaskFrontier, offers: Offers) -> bool:
        looked = await shard.claim(0, [])
        if isinstance(looked, Refusal):
            return False
        claimed = await shard.claim(10, [(host, 0) for host, _ in looked.ahead])
        if isinstance(claimed, Refusal):
            return False
        if claimed.claims:
            await self._fetch(shard, offers, claimed)
        return True

    async def _fetch(self, shard: TaskFrontier, offers: Offers, claimed: Claimed) -> None:
        await self.gate.wait()
        finished: list[Finished] = []
        for claim in claimed.claims:
            item = item_of(claim)
            outcome = Outcome.DROPPED if claim.rule else Outcome.FETCHED
            if not claim.rule:
                self.fetched.append(item.url)
                links = [
                    Item(url.host_key(link), url.path_of(link), item.depth + 1, item.url)
                    for link in self.pages.get(item.url, ())
                ]
                for number, found in offers.by_shard(links).items():

                    async def is_taken(number: int = number, found: list[Item] = found) -> bool:
                        answer = await offers.offer(number, found)
                        return answer not in (Refusal.RETRY, Refusal.RUN)

                    await until(is_taken)
            finished.append(Finished(claim.number, claim.host, 0, 0, outcome, b"{}"))
        await shard.settle(finished=finished)
