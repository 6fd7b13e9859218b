"""Many small crawls on the real scripts, their steps interleaved at random: when is one finished?

One seed is one crawl. Workers, former owners that do not know it yet, and masters run as coroutines
that take turns before every single call to Redis; a seeded choice says whose turn it is, who
crashes and who loses its task. The decisions are the master's own (``coordinator.plan``), the
scripts are the real ones on a real server; only etcd is played: a register with compare-and-swap.

Wrong is an *early finish* (something was reachable and has no result, or is left over), a *twice*,
or a *hang* (no end though nothing stands in the way).
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from common.frontier import FrontierClient, Refusal
from common.frontier.items import Item
from common.frontier.job import JobFrontier, MasterFence
from common.frontier.offers import Offers
from common.frontier.owner import TaskFrontier, item_of
from common.frontier.replies import Adopted, Claim, Claimed, Offered, ShardState
from common.frontier.scripts import Call
from common.frontier.settling import Finished
from common.model.ids import HostKey, JobId, Revision, Task, Token
from common.model.job import Job, JobSpec, JobState
from common.model.records import Outcome
from coordinator.completion import look
from coordinator.facts import JobView, Memory
from coordinator.observe import facts_of
from coordinator.plan import ApplyState, Finish, OfferSeeds, plan_job

JOB = JobId("j")
SHARDS, HOSTS, URLS = 3, 4, 9
STEPS: Final = 4000
"""A run that takes more is a hang."""


class Turns:
    """One coroutine goes on at a time, to its next call; chance says which."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.steps = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._arrived = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def wait(self) -> None:
        turn = self._turn()
        self._arrived.set()
        await turn

    def spawn(self, actor: Coroutine[Any, Any, None]) -> None:
        """Let a coroutine take part from now on."""
        turn = self._turn()

        async def begin() -> None:
            try:
                await turn
            except asyncio.CancelledError:
                actor.close()
                raise
            await actor

        task = asyncio.create_task(begin())
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._arrived.set())

    async def next(self) -> bool:
        """Let somebody take a step; False when nobody is left."""
        if not self._waiting:
            return False
        self.steps += 1
        turn = self.chance.choice(self._waiting)
        self._waiting.remove(turn)
        turn.set_result(None)
        await self._arrived.wait()
        self._arrived.clear()
        return True

    def _turn(self) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return turn

    async def end(self) -> None:
        """Stop everybody; raises what went wrong in one of them."""
        for task in self._tasks:
            if not task.done():
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for task in self._tasks:
            if not task.cancelled():
                task.result()


class SteppedClient:
    """The real client; before each script somebody else may have a turn."""

    def __init__(self, client: FrontierClient, turns: Turns) -> None:
        self._client = client
        self._turns = turns

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        replies = []
        for call in calls:
            await self._turns.wait()
            replies += await self._client.call([call])
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@dataclass
class Etcd:
    """What etcd would hold: the job's record, the term, the locks."""

    job: Job
    revision: int = 10
    term: int = 1
    owners: dict[int, int] = field(default_factory=dict)
    tokens: int = 100

    def swap(self, job: Job, *, expected: int, term: int) -> bool:
        if (self.revision, self.term) != (expected, term):
            return False
        self.job, self.revision = job, self.revision + 1
        return True


class Run:
    """One crawl."""

    def __init__(self, client: FrontierClient, seed: int, *, careful: bool = True) -> None:
        self.chance = random.Random(f"completion {seed}")
        self.careful = careful
        """False: a master that believes its first pass and seals nothing."""
        self.turns = Turns(self.chance)
        self.real = client
        self.client: Any = SteppedClient(client, self.turns)
        self.cluster = f"c{seed}"
        self.spec = JobSpec(shards=SHARDS, delay=0, per_host=64, timeout=0.1, scope="any")
        job = Job(id=JOB, spec=self.spec, state=JobState.RUNNING, seeds=2, created_at="",
                  started_at="x")  # fmt: skip
        self.etcd = Etcd(job)
        self.offers = Offers(self.client, cluster=self.cluster, job=JOB, spec=self.spec)
        urls = [f"http://h{self.chance.randrange(HOSTS)}.example/{n}" for n in range(URLS)]
        # A chain, so that little is alive at a time and it wanders over the shards.
        self.links = {
            url: [*urls[at + 1 : at + 2], *self.chance.sample(urls, self.chance.random() < 0.2)]
            for at, url in enumerate(urls)
        }
        self.fickle = {url: self.chance.choice(urls) for url in urls if self.chance.random() < 0.3}
        self.seeds = urls[:1]
        self.faults = 6

    def fault(self, likelihood: float) -> bool:
        if self.faults <= 0 or self.chance.random() >= likelihood:
            return False
        self.faults -= 1
        return True

    # ----------------------------------------------------------------------------------- workers

    async def worker(self, shard: int) -> None:
        """Own a shard under one token after the other; crash or be replaced now and then."""
        self.etcd.tokens += 1
        token = self.etcd.owners[shard] = self.etcd.tokens
        frontier = TaskFrontier(
            self.client, cluster=self.cluster, task=Task(JOB, shard), spec=self.spec,
            token=Token(token),
        )  # fmt: skip
        adopted = await frontier.adopt(
            await self.real.current_run("any"), state=ShardState.OPEN,
            revision=Revision(self.etcd.revision),
        )  # fmt: skip
        if isinstance(adopted, Adopted):
            await frontier.recover([], dead_below=0)
            while not self.etcd.job.state.is_final and await self._round(frontier):
                if self.etcd.owners[shard] == token and self.fault(0.05):
                    # Somebody else takes over; this one goes on for as long as it is let.
                    self.turns.spawn(self.worker(shard))

    async def _round(self, frontier: TaskFrontier) -> bool:
        ahead = await frontier.claim(0, [])
        if not isinstance(ahead, Claimed):
            return False
        answer = await frontier.claim(2, [(host, 0) for host, _ in ahead.ahead])
        if not isinstance(answer, Claimed):
            return False
        for claim in answer.claims:
            if not await self._page(frontier, claim):
                return False
        return True

    async def _page(self, frontier: TaskFrontier, claim: Claim) -> bool:
        url = item_of(claim).url
        links = list(self.links[url])
        if url in self.fickle and self.chance.random() < 0.5:
            links.append(self.fickle[url])
        for shard, found in self.offers.by_shard([_item(link) for link in links]).items():
            if self.fault(0.03):
                self.turns.spawn(self.worker(frontier_shard(frontier)))
                return False  # crashed between its offers
            while (answer := await self.offers.offer(shard, found)) is Refusal.RETRY:
                await self.turns.wait()
            if not isinstance(answer, Offered):
                return False
        record = json.dumps({"url": url, "links": links}).encode()
        done = Finished(claim.number, claim.host, -1, 0, Outcome.FETCHED, record)
        return not isinstance(await frontier.settle(finished=[done]), Refusal)

    # ------------------------------------------------------------------------------------ masters

    async def master(self) -> None:
        """Decide as the master does; now and then a successor begins while this one goes on."""
        term, etcd = self.etcd.term, self.etcd
        frontier = JobFrontier(self.client, cluster=self.cluster, job=JOB, spec=self.spec)
        memory = Memory()
        while not etcd.job.state.is_final:
            if self.fault(0.02) and etcd.term == term:
                etcd.term += 1
                self.turns.spawn(self.master())
            job, revision = etcd.job, etcd.revision
            stats = await frontier.stats()
            view = JobView(job=job, revision=Revision(revision), shards=facts_of(stats),
                           memory=memory)  # fmt: skip
            fence = MasterFence(term, revision)
            actions = plan_job(view)
            seen = look(job, view.revision, view.shards or ())
            memory = replace(memory, last_pass=seen)
            if not self.careful and seen is not None:
                actions = [Finish(job=JOB, revision=view.revision)]
            for action in actions:
                match action:
                    case ApplyState(state=state):
                        refusals = await frontier.apply(ShardState(state), fence=fence)
                        if Refusal.STALE in refusals:
                            return
                        memory = Memory(fenced=Revision(revision))
                    case OfferSeeds():
                        await self._offer_seeds(frontier, fence)
                    case Finish():
                        memory = Memory()
                        if not self.careful or await frontier.seal(stats, fence=fence):
                            self._finish(job, revision, term)
            if etcd.term != term:
                return

    def _finish(self, job: Job, revision: int, term: int) -> None:
        import msgspec  # noqa: PLC0415

        over = msgspec.structs.replace(job, state=JobState.FINISHED)
        self.etcd.swap(over, expected=revision, term=term)

    async def _offer_seeds(self, frontier: JobFrontier, fence: MasterFence) -> None:
        for number, urls in await frontier.staged():
            if await frontier.offer_seeds(urls) is None:
                await frontier.unstage(number, fence=fence)

    # ------------------------------------------------------------------------------------ the run

    async def go(self) -> Counter[str]:
        """Crawl to the end; return what went wrong."""
        master = JobFrontier(self.real, cluster=self.cluster, job=JOB, spec=self.spec)
        await master.create(fence=MasterFence(1, 1), state=ShardState.OPEN)
        await master.stage(1, self.seeds)
        self.turns.spawn(self.master())
        for shard in range(SHARDS):
            self.turns.spawn(self.worker(shard))
        while self.turns.steps < STEPS and await self.turns.next():
            if self.chance.random() < 0.002 and not self.etcd.job.state.is_final:
                self.etcd.revision += 1  # somebody paused and resumed it, say
        await self.turns.end()
        wrong: Counter[str] = Counter()
        if not self.etcd.job.state.is_final:
            wrong["hang"] += 1
            return wrong
        records = [
            json.loads(raw)
            for shard in range(SHARDS)
            for _, raw in await master.results(shard, after="0-0", count=1000)
        ]
        counts = Counter(record["url"] for record in records)
        wrong["twice"] += any(count > 1 for count in counts.values())
        needed = {*self.seeds, *(link for record in records for link in record["links"])}
        left = any(not one.is_empty for one in await master.stats())
        wrong["early finish"] += bool(needed - counts.keys()) or left
        return +wrong


def frontier_shard(frontier: TaskFrontier) -> int:
    return int(frontier._keys.meta.rpartition("}")[0].rpartition(":")[2])


def _item(url: str) -> Item:
    host, _, path = url.rpartition("/")
    return Item(HostKey(host), f"/{path}", 1, None)


async def runs(
    client: FrontierClient, seeds: Sequence[int], *, careful: bool = True
) -> Counter[str]:
    """Run seeds one after the other; return how many went wrong, in which way."""
    wrong: Counter[str] = Counter()
    for seed in seeds:
        found = await Run(client, seed, careful=careful).go()
        wrong.update(found)
        if found:
            wrong[f"seed {seed}"] += 1
        await client.commands([("FLUSHDB",)])
    return wrong
