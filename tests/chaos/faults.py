"""Faults: each is put in and taken out again, and has a name.

A fault is made from a lab and a *pick* (a number that says which of several targets). Taking it out
must work whatever other faults did meanwhile.
"""

from __future__ import annotations

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from common.coord.wire import Delete, messages
from common.model.errors import CoordUnavailable, LeaseLost, UnknownOutcome
from tests.chaos.graph import UNLINKED
from tests.chaos.lab import JOB, Lab
from tests.chaos.network import Direction, How, Pair
from tests.chaos.nodes import Node
from tests.support.servers import EtcdServer, Server, ServerStartError

Made = Callable[[Lab, int], "FaultBase"]


class FaultBase(ABC):
    """One fault."""

    name: ClassVar[str] = ""
    lasts_s: ClassVar[tuple[float, float]] = (1.0, 4.0)
    """Shortest and longest, in schedules."""
    damages: ClassVar[bool] = False

    def __init__(self, lab: Lab, pick: int) -> None:
        self.lab = lab
        self.pick = pick
        self.target = ""

    @abstractmethod
    async def inject(self) -> None: ...

    async def heal(self) -> None:
        return

    def worker_slot(self) -> str:
        slots = self.lab.slot_names("worker")
        return slots[self.pick % len(slots)]

    def master_slot(self) -> str:
        """Return the acting master's slot; one pick in four a standby's."""
        slots = self.lab.slot_names("master")
        master = self.lab.master()
        if master is None:
            return slots[self.pick % len(slots)]
        others = [slot for slot in slots if slot != master.slot]
        return others[0] if others and self.pick % 4 == 3 else master.slot


# --------------------------------------------------------------------------------------- processes


class _OnNode(FaultBase):
    role: ClassVar[str]
    node: Node | None = None

    def find(self) -> Node | None:
        slot = self.worker_slot() if self.role == "worker" else self.master_slot()
        self.node = self.lab.node(slot)
        self.target = self.node.id if self.node else slot
        return self.node


class _Kill(_OnNode):
    """kill -9; another process takes the slot later."""

    async def inject(self) -> None:
        if node := self.find():
            await asyncio.to_thread(node.kill)

    async def heal(self) -> None:
        if self.node is not None and self.lab.node(self.node.slot) is self.node:
            self.lab.start_node(self.node.slot)


class KillWorker(_Kill):
    name, role = "kill-worker", "worker"


class KillMaster(_Kill):
    name, role = "kill-master", "master"


class _Stop(_OnNode):
    """SIGSTOP past the lease, then SIGCONT: a process that believes what is long over."""

    lasts_s = (7.0, 11.0)

    async def inject(self) -> None:
        if node := self.find():
            node.signal(signal.SIGSTOP)

    async def heal(self) -> None:
        if self.node is not None:
            self.node.signal(signal.SIGCONT)


class StopWorker(_Stop):
    name, role = "stop-worker", "worker"


class StopMaster(_Stop):
    name, role = "stop-master", "master"


class BlockWorker(_Stop):
    """A busy event loop: nothing happens for a while, but not for as long as the lease."""

    name, role = "block-worker", "worker"
    lasts_s = (0.5, 3.0)


class BlockMaster(_Stop):
    name, role = "block-master", "master"
    lasts_s = (0.5, 3.0)


class DrainWorker(_OnNode):
    """SIGTERM: the worker finishes and leaves; another one comes."""

    name, role = "drain-worker", "worker"

    async def inject(self) -> None:
        if node := self.find():
            node.is_meant_to_end = True
            node.signal(signal.SIGTERM)

    async def heal(self) -> None:
        # A new process comes when the old one is gone, as under a supervisor.
        if self.node is None or self.lab.node(self.node.slot) is not self.node:
            return
        for _ in range(300):
            if not self.node.is_running:
                break
            await asyncio.sleep(0.1)
        else:
            self.lab.slots.died.append(f"{self.node.id} did not end within 30 s of SIGTERM")
            await asyncio.to_thread(self.node.kill)
        code = self.node.process.returncode
        if code not in (0, -signal.SIGKILL) and self.lab.slots.has_served(self.node):
            self.lab.slots.died.append(f"{self.node.id} drained with code {code}")
        self.lab.start_node(self.node.slot)


class ResignMaster(DrainWorker):
    name, role = "resign-master", "master"


# ------------------------------------------------------------------------------------------ network


class Cut(FaultBase):
    """Part of the network is away for one node."""

    lasts_s = (2.0, 10.0)
    role: ClassVar[str]
    service: ClassVar[str]
    pairs: Sequence[Pair] = ()

    def shape(self) -> tuple[Direction, How]:
        directions: Sequence[Direction] = ("both", "requests", "replies")
        hows: Sequence[How] = ("hold", "lose")
        return directions[(self.pick // 4) % 3], hows[(self.pick // 12) % 2]

    async def inject(self) -> None:
        slot = self.worker_slot() if self.role == "worker" else self.master_slot()
        direction, how = self.shape()
        self.pairs = self.lab.network.of(slot, self.service)
        self.target = f"{slot} {direction} {how}"
        for pair in self.pairs:
            pair.cut(direction, how)

    async def heal(self) -> None:
        self.lab.network.heal(self.pairs)


class CutWorkerEtcd(Cut):
    name, role, service = "cut-worker-etcd", "worker", "etcd"


class CutWorkerRedis(Cut):
    name, role, service = "cut-worker-redis", "worker", "redis"


class CutMasterEtcd(Cut):
    name, role, service = "cut-master-etcd", "master", "etcd"


class CutMasterRedis(Cut):
    name, role, service = "cut-master-redis", "master", "redis"


class LostReplies(FaultBase):
    """For a moment every request of a worker arrives and no reply comes back; then all is reset."""

    name = "lost-replies"
    lasts_s = (0.2, 1.0)
    pairs: Sequence[Pair] = ()

    async def inject(self) -> None:
        slots = [*self.lab.slot_names("worker"), *self.lab.slot_names("master")]
        slot, service = slots[self.pick % len(slots)], ("etcd", "redis")[(self.pick // 5) % 2]
        self.target = f"{slot} {service}"
        self.pairs = self.lab.network.of(slot, service)
        for pair in self.pairs:
            pair.cut("replies", "lose")

    async def heal(self) -> None:
        for pair in self.pairs:
            pair.reset()
        self.lab.network.heal(self.pairs)


class Slow(FaultBase):
    """Everything of one node takes longer."""

    name = "slow-links"
    lasts_s = (2.0, 8.0)
    pairs: Sequence[Pair] = ()

    async def inject(self) -> None:
        slots = [*self.lab.slot_names("worker"), *self.lab.slot_names("master")]
        self.target = slots[self.pick % len(slots)]
        self.pairs = [pair for pair in self.lab.network.pairs if pair.node == self.target]
        for pair in self.pairs:
            pair.slow(0.05 + 0.05 * (self.pick % 6))

    async def heal(self) -> None:
        self.lab.network.heal(self.pairs)


# ----------------------------------------------------------------------------------------- services


async def _start_again(lab: Lab, servers: Sequence[Server]) -> None:
    async with lab.servers_busy:
        down = [server for server in servers if not server.is_running]
        for _ in range(3):
            for server in down:
                if not server.is_running:
                    server.launch()
            try:
                for server in down:
                    # An etcd member is healthy only once there is a quorum.
                    if not isinstance(server, EtcdServer):
                        await asyncio.to_thread(server.wait_ready)
            except ServerStartError:
                continue
            return


class KillEtcdLeader(FaultBase):
    name = "kill-etcd-leader"
    member: EtcdServer | None = None

    async def inject(self) -> None:
        async with self.lab.servers_busy:
            try:
                self.member = await asyncio.to_thread(self.lab.etcd.leader, within_s=3.0)
            except ServerStartError:
                return
            self.target = self.member.name
            await asyncio.to_thread(self.member.kill)

    async def heal(self) -> None:
        if self.member is not None:
            await _start_again(self.lab, [self.member])


class HangEtcdMember(FaultBase):
    """SIGSTOP of a member: its connections stay open and nothing answers."""

    name = "hang-etcd-member"
    lasts_s = (3.0, 10.0)
    member: EtcdServer | None = None

    async def inject(self) -> None:
        member = self.lab.etcd.members[self.pick % len(self.lab.etcd.members)]
        async with self.lab.servers_busy:
            if member.is_running:
                self.member, self.target = member, member.name
                await asyncio.to_thread(member.pause)

    async def heal(self) -> None:
        if self.member is not None:
            self.member.resume()


class LoseQuorum(FaultBase):
    """Two of three etcd members are killed."""

    name = "lose-quorum"
    lasts_s = (2.0, 9.0)

    async def inject(self) -> None:
        members = self.lab.etcd.members
        gone = [one for at, one in enumerate(members) if at != self.pick % len(members)]
        self.target = " ".join(one.name for one in gone)
        async with self.lab.servers_busy:
            for member in gone:
                await asyncio.to_thread(member.kill)

    async def heal(self) -> None:
        await _start_again(self.lab, self.lab.etcd.members)


class RestartEtcd(LoseQuorum):
    """All members are killed and start again."""

    name = "restart-etcd"
    lasts_s = (0.5, 3.0)

    async def inject(self) -> None:
        async with self.lab.servers_busy:
            for member in self.lab.etcd.members:
                await asyncio.to_thread(member.kill)


async def _by_hand(lab: Lab, *calls: Callable[[], object]) -> None:
    """Do something to etcd that may not be answered; then it did not happen."""
    for call in calls:
        try:
            await asyncio.wait_for(call(), 5.0)  # type: ignore[arg-type]
        except (CoordUnavailable, UnknownOutcome, LeaseLost, TimeoutError):
            return


class CompactEtcd(FaultBase):
    """History is thrown away while some watch is behind."""

    name = "compact-etcd"
    lasts_s = (0.0, 0.1)

    async def inject(self) -> None:
        await _by_hand(self.lab, self.compact)

    async def compact(self) -> None:
        etcd = self.lab.coord.etcd
        now = await etcd.get_prefix(self.lab.coord.keys.root)
        # Not what the judge has not seen yet: its watch may hang with a member, too.
        seen = min(now.revision, self.lab.seen_etcd.revision)
        request = messages.CompactionRequest(revision=seen, physical=False)
        await etcd._transport.call(lambda member, options: member.kv.Compact(request, **options))


class RevokeLease(FaultBase):
    """etcd drops a lease under its owner: worker, or master one pick in four."""

    name = "revoke-lease"
    lasts_s = (0.0, 0.1)

    async def inject(self) -> None:
        slot = self.master_slot() if self.pick % 4 == 0 else self.worker_slot()
        node = self.lab.node(slot)
        self.target = node.id if node else slot
        await _by_hand(self.lab, self.revoke)

    async def revoke(self) -> None:
        coord = self.lab.coord
        found = await coord.etcd.get(coord.keys.node(self.target))
        if found is not None and found.lease:
            await coord.etcd.revoke(found.lease)


class BreakLocks(FaultBase):
    """The keys of locks, or of the election, are deleted by hand."""

    name = "break-locks"
    lasts_s = (0.0, 0.1)

    async def inject(self) -> None:
        keys = self.lab.coord.keys
        if self.pick % 3 == 0:
            self.target, names = "election", [keys.election]
        else:
            shard = self.pick % int(self.lab.options["shards"])
            self.target, names = f"shard {shard}", [keys.lock(f"tasks/{JOB}/{shard}")]
        await _by_hand(
            self.lab,
            lambda: self.lab.coord.etcd.txn(compare=(), success=[Delete(name) for name in names]),
        )


class KillRedis(FaultBase):
    name = "kill-redis"
    lasts_s = (0.1, 4.0)

    async def inject(self) -> None:
        async with self.lab.servers_busy:
            await asyncio.to_thread(self.lab.redis.kill)

    async def heal(self) -> None:
        # Nobody may speak with the new server before it is listened to.
        pairs = [pair for pair in self.lab.network.pairs if pair.service == "redis"]
        for pair in pairs:
            pair.gate.clear()
        try:
            await _start_again(self.lab, [self.lab.redis])
            await asyncio.wait_for(self.lab.seen_redis.is_listening.wait(), 10.0)
        except TimeoutError:
            return
        finally:
            for pair in pairs:
                pair.gate.set()


class StopRedis(FaultBase):
    name = "stop-redis"
    lasts_s = (1.0, 12.0)

    async def inject(self) -> None:
        async with self.lab.servers_busy:
            if self.lab.redis.is_running:
                await asyncio.to_thread(self.lab.redis.pause)

    async def heal(self) -> None:
        self.lab.redis.resume()


class StepRedisClock(FaultBase):
    """The clock of the data server is set an hour back, or forward, and then right again."""

    name = "step-redis-clock"
    lasts_s = (2.0, 6.0)

    async def inject(self) -> None:
        assert self.lab.clocks is not None
        step_s = (-3600.0, 3600.0, -30.0)[self.pick % 3]
        self.target = f"{step_s:+.0f} s"
        self.lab.clocks.step("redis", step_s)

    async def heal(self) -> None:
        assert self.lab.clocks is not None
        self.lab.clocks.step("redis", 0.0)


class StepNodeClock(FaultBase):
    """The clock of a master or worker is an hour off for a while."""

    name = "step-node-clock"
    lasts_s = (2.0, 8.0)
    slot = ""

    async def inject(self) -> None:
        assert self.lab.clocks is not None
        slots = [*self.lab.slot_names("worker"), *self.lab.slot_names("master")]
        self.slot = slots[self.pick % len(slots)]
        step_s = (-3600.0, 3600.0)[(self.pick // 5) % 2]
        self.target = f"{self.slot} {step_s:+.0f} s"
        self.lab.clocks.step(self.slot, step_s)

    async def heal(self) -> None:
        assert self.lab.clocks is not None
        self.lab.clocks.step(self.slot, 0.0)


class PauseJob(FaultBase):
    """Somebody pauses the job, and resumes it."""

    name = "pause-job"

    async def inject(self) -> None:
        await self.lab.try_command("job", "pause", JOB)

    async def heal(self) -> None:
        for _ in range(20):  # while etcd is away, say
            if self.lab.job_state() in ("finished", "running"):
                return
            await self.lab.try_command("job", "resume", JOB)
            await asyncio.sleep(0.3)


class AddSeeds(FaultBase):
    """Somebody adds a seed to the running job, at the end of it perhaps."""

    name = "add-seeds"
    lasts_s = (0.0, 0.1)

    async def inject(self) -> None:
        ref = (0, UNLINKED[self.pick % len(UNLINKED)])
        self.target = ref[1]
        url = f"http://127.0.0.1:{self.lab.ports[0]}{ref[1]}"
        code, _, _ = await self.lab.try_command("job", "add", JOB, url)
        (self.lab.added if code == 0 else self.lab.maybe_added).append(ref)


class FlushRedis(FaultBase):
    """FLUSHALL: the data of the job is gone."""

    name = "flush-redis"
    lasts_s = (0.0, 0.1)
    damages = True

    async def inject(self) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", self.lab.redis.port)
        writer.write(b"FLUSHALL\r\n")
        await writer.drain()
        writer.close()


ALL: dict[str, type[FaultBase]] = {
    kind.name: kind
    for kind in (
        KillWorker, KillMaster, StopWorker, StopMaster, BlockWorker, BlockMaster, DrainWorker,
        ResignMaster, CutWorkerEtcd, CutWorkerRedis, CutMasterEtcd, CutMasterRedis, LostReplies,
        Slow, KillEtcdLeader, HangEtcdMember, LoseQuorum, RestartEtcd, CompactEtcd, RevokeLease,
        BreakLocks, KillRedis, StopRedis, FlushRedis, StepRedisClock, StepNodeClock, PauseJob,
        AddSeeds,
    )
}  # fmt: skip
