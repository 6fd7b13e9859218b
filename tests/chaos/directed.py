"""Directed schedules: each aims at one guard, with everything else quiet.

A scenario is a lab's setup and what is done to it. On the crawler as it is the judge has nothing to
say; with the guard taken out (``mutants.py``) it must have. Nothing here waits for a time where it
can wait for a fact.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from tests.chaos.faults import KillRedis
from tests.chaos.graph import Graph, Host, Page, Ref
from tests.chaos.history import Fault
from tests.chaos.lab import JOB, Lab, Setup
from tests.chaos.network import Pair

Act = Callable[[Lab], Awaitable[None]]
_WAIT_S = 60.0
_LOOK_S = 0.02
_CLAIMING = b"$2\r\n64\r\n$22\r\nhttp://127.0.0.1:"
"""A claim that names a host which is due, as it is on the wire: it will take something."""


class Scenario(NamedTuple):
    """One directed schedule."""

    says: str
    act: Act
    graph: Callable[[], Graph]
    options: Mapping[str, Any] = {}
    workers: int = 2
    idle: frozenset[str] = frozenset()
    masters: int = 1
    lease_ttl_s: float = 6.0
    appendfsync: str = "always"
    end_s: float = 60.0
    """How long the job may take to end once the act is over."""

    def setup(self, **more: Any) -> Setup:
        return Setup(
            graph=self.graph(),
            options=self.options,
            workers=self.workers,
            masters=self.masters,
            idle=self.idle,
            lease_ttl_s=self.lease_ttl_s,
            appendfsync=self.appendfsync,
            etcd_size=1,
            **more,
        )


async def until(look: Callable[[], Any], *, within_s: float = _WAIT_S, what: str = "") -> Any:
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        assert time.monotonic() < deadline, f"not within {within_s} s: {what or look}"
        await asyncio.sleep(_LOOK_S)
    return seen


def note(lab: Lab, name: str, target: str, started: float) -> None:
    lab.faults.append(Fault(name, target, started, time.monotonic()))


# ------------------------------------------------------------------------------------------- graphs


def plain(hosts: int = 4, pages: int = 12, *, slow_s: float = 0.0) -> Graph:
    """Each host's root leads to all its pages; a page leads to the next host's."""

    def host(number: int) -> Host:
        found = {"/": Page(links=tuple((number, f"/p{n}") for n in range(1, pages)))}
        for n in range(1, pages):
            link: tuple[Ref, ...] = (((number + 1) % hosts, f"/p{n}"),)
            found[f"/p{n}"] = Page(kind="slow" if slow_s else "page", links=link, delay_s=slow_s)
        return Host(pages=found)

    return Graph(hosts=tuple(host(number) for number in range(hosts)))


def one_slow(seconds: float) -> Graph:
    """One page that answers late, and a few that do not."""
    pages = {"/": Page(links=((0, "/slow"), (0, "/a"), (0, "/b")))}
    pages |= {"/slow": Page(kind="slow", delay_s=seconds), "/a": Page(), "/b": Page()}
    return Graph(hosts=(Host(pages=pages),))


def chain(length: int, hosts: int) -> Graph:
    """A single URL is alive at any time, and it wanders over the hosts."""
    at = [(number * 7 + number // hosts) % hosts for number in range(length)]
    pages: list[dict[str, Page]] = [{"/": Page()} for _ in range(hosts)]
    for number in range(length - 1):
        link = ((at[number + 1], f"/c{number + 1}"),)
        pages[at[number]][f"/c{number}"] = Page(links=link)
    pages[at[-1]][f"/c{length - 1}"] = Page()
    pages[0]["/"] = Page(links=((at[0], "/c0"),))
    return Graph(hosts=tuple(Host(pages=one) for one in pages))


def fickle() -> Graph:
    """A page that shows a link only to whoever asks first."""
    pages = {
        "/": Page(links=((0, "/fickle"), (0, "/a"))),
        "/fickle": Page(kind="fickle", links=((1, "/only-once"), (0, "/a"))),
        "/a": Page(),
    }
    return Graph(hosts=(Host(pages=pages), Host(pages={"/": Page(), "/only-once": Page()})))


# ------------------------------------------------------------------------------------ what is done


def fetched(lab: Lab) -> int:
    return (lab.folder / "requests.jsonl").read_text().count("\n")


def holder(lab: Lab, shard: int) -> str | None:
    change = lab.seen_etcd.latest(f"locks/tasks/{JOB}/{shard}")
    return change.value["owner"] if change is not None and change.created else None


def holds(lab: Lab, node: str) -> list[int]:
    return [s for s in range(int(lab.options["shards"])) if holder(lab, s) == node]


def all_held_by_others(lab: Lab, node: str) -> bool:
    shards = range(int(lab.options["shards"]))
    return all((owner := holder(lab, shard)) is not None and owner != node for shard in shards)


async def _busy_worker(lab: Lab) -> str:
    """Return the slot of a worker that owns tasks and has written pages: some have no host."""
    await until(lambda: fetched(lab) >= 12, what="requests")

    def busy() -> str | None:
        wrote = {one.node for one in lab.seen_redis.writes if one.script == "commit"}
        nodes = [node for node in lab.slots.current.values() if node.role == "worker"]
        return next((n.slot for n in nodes if n.id in wrote and len(holds(lab, n.id)) > 1), None)

    return str(await until(busy, what="a worker that writes"))


async def late_calls(lab: Lab) -> None:
    """A commit reaches Redis only when others have taken over (T1, T9)."""
    slot = await _busy_worker(lab)
    node, started = lab.node(slot), time.monotonic()
    assert node is not None
    (data,) = lab.network.of(slot, "redis")
    shards, before = set(holds(lab, node.id)), len(lab.seen_redis.writes)
    data.hold_from(lab.seen_redis.sha_of("commit"))
    await until(lambda: data.held_bytes > 0, what="a commit held")
    for pair in lab.network.of(slot, "etcd"):
        pair.cut("both", "hold")
    await until(lambda: all_held_by_others(lab, node.id), what="takeover")
    await until(
        lambda: (
            shards
            <= {
                one.shard
                for one in lab.seen_redis.writes[before:]
                if one.script == "adopt" and one.node != node.id
            }
        ),
        what="adoption by the successor",
    )
    lab.network.heal()
    note(lab, "late-calls", node.id, started)


async def late_master(lab: Lab) -> None:
    """A former master's call arrives when its successor has acted on the shards (T1)."""
    master = await until(lab.master, what="a master")
    started = time.monotonic()
    (data,) = lab.network.of(master.slot, "redis")
    data.hold_from(lab.seen_redis.sha_of("unstage"))
    await lab.submit()
    await until(lambda: data.held_bytes > 0, what="the call held")
    for pair in lab.network.of(master.slot, "etcd"):
        pair.cut("both", "hold")
    await until(lambda: (m := lab.master()) and m.slot != master.slot, what="a successor")
    await until(
        lambda: any(one.term and one.node != master.id for one in lab.seen_redis.writes),
        what="writes of the successor",
    )
    lab.network.heal()
    note(lab, "late-master", master.id, started)


async def cut_from_etcd(lab: Lab) -> None:
    """A worker, alone, loses etcd and nothing else: it must stop by its own clock (T2)."""
    slot = await _busy_worker(lab)
    started = time.monotonic()
    node = lab.node(slot)
    assert node is not None
    for pair in lab.network.of(slot, "etcd"):
        pair.cut("both", "hold")
    await until(lambda: not holds(lab, node.id), what="the lease's end")
    await asyncio.sleep(2.0)
    lab.network.heal()
    note(lab, "cut-worker-etcd", node.id, started)


async def kill_with_pages(lab: Lab) -> None:
    """A worker dies with pages in flight; its successors must fetch them."""
    await _busy_worker(lab)
    node, started = lab.node("w1"), time.monotonic()
    assert node is not None
    await until(lambda: _asked(lab).count("\n") > fetched(lab) + 1, what="requests under way")
    node.kill()
    lab.start_node("w2")
    note(lab, "kill-worker", node.id, started)


async def slow_looks(lab: Lab) -> None:
    """A master's looks at the shards take long, so that a pass sees each at another time."""
    master = await until(lab.master, what="a master")
    await until(lambda: fetched(lab) >= 3, what="requests")
    (data,) = lab.network.of(master.slot, "redis")
    started = time.monotonic()
    data.requests.trickle(256, 0.01)
    await until(lambda: lab.job_state() == "finished" or fetched(lab) > 300, what="the end")
    lab.network.heal()
    note(lab, "slow-links", master.id, started)


async def late_offer(lab: Lab) -> None:
    """Links that a former owner offers arrive when the job is over."""
    pairs = [pair for pair in lab.network.pairs if pair.service == "redis"]
    workers = [pair for pair in pairs if pair.node.startswith("w")]
    for pair in workers:
        pair.hold_from(b"/only-once")
    started = time.monotonic()
    await lab.submit()
    held = await until(
        lambda: next((pair for pair in workers if pair.held_bytes), None),
        what="the offer held",
    )
    for pair in workers:
        if pair is not held:
            pair.hold_from(None)
    node = lab.node(held.node)
    assert node is not None
    await asyncio.to_thread(node.kill)
    await until(lambda: lab.job_state() == "finished", what="the end")
    await asyncio.sleep(0.5)
    lab.network.heal()
    await asyncio.sleep(0.5)
    note(lab, "late-calls", node.id, started)


async def restart_redis(lab: Lab) -> None:
    """The data server dies and comes back: each shard must be adopted before anything else."""
    await _busy_worker(lab)
    started = time.monotonic()
    fault = KillRedis(lab, 0)
    await fault.inject()
    await fault.heal()
    note(lab, "kill-redis", "", started)


async def rolled_back(lab: Lab) -> None:
    """Links are taken, and a crash takes them back before their page is committed (T8)."""
    pairs = [pair for pair in lab.network.pairs if pair.service == "redis"]
    workers = [pair for pair in pairs if pair.node.startswith("w")]
    for pair in workers:
        pair.hold_from(lab.seen_redis.sha_of("offer"))
    started = time.monotonic()
    await lab.submit()
    held = await until(
        lambda: next((pair for pair in workers if pair.held_bytes), None), what="an offer held"
    )
    log, copy = lab.redis.folder / "appendonlydir", lab.folder / "log"
    await asyncio.sleep(2.5)  # what was written before is in the log's file, and synced
    await asyncio.to_thread(shutil.copytree, log, copy)
    before = len(lab.seen_redis.writes)
    lab.network.heal()
    for pair in workers:
        pair.hold_from(lab.seen_redis.sha_of("commit"))
    await until(
        lambda: any(w.script == "offer" and w.run for w in lab.seen_redis.writes[before:]),
        what="the offer taken",
    )
    await until(lambda: held.held_bytes > 0, what="the commit held")
    fault = KillRedis(lab, 0)
    await fault.inject()
    shutil.rmtree(log)
    shutil.copytree(copy, log)
    for pair in workers:
        pair.reset()
    lab.network.heal()
    await fault.heal()
    note(lab, "crash-redis", "", started)


async def ghost(lab: Lab) -> None:
    """A worker stops while a site takes long to answer; others take over meanwhile (T1)."""
    await until(lambda: "/slow" in _asked(lab), what="the slow page")
    owner = next(node for node in lab.slots.current.values() if holds(lab, node.id))
    started = time.monotonic()
    owner.signal(signal.SIGSTOP)
    await until(lambda: all_held_by_others(lab, owner.id), what="takeover")
    await asyncio.sleep(4.0)
    owner.signal(signal.SIGCONT)
    note(lab, "stop-worker", owner.id, started)


def _asked(lab: Lab) -> str:
    return (lab.folder / "asked.log").read_text()


async def crash_with_links(lab: Lab) -> None:
    """A worker dies at the moment in which it offers links to another shard."""
    workers = [
        pair for pair in lab.network.pairs if pair.service == "redis" and pair.node.startswith("w")
    ]
    for pair in workers:
        pair.hold_from(lab.seen_redis.sha_of("offer"))
    started = time.monotonic()
    await lab.submit()
    held = await until(
        lambda: next((pair for pair in workers if pair.held_bytes), None),
        what="an offer held",
    )
    await asyncio.sleep(0.5)  # whatever would be committed regardless is
    node = lab.node(held.node)
    assert node is not None
    await asyncio.to_thread(node.kill)
    for pair in workers:
        pair.hold_from(None)
        pair.reset()
    lab.network.heal()
    note(lab, "kill-worker", node.id, started)


async def lost_replies(lab: Lab) -> None:
    """Claims and commits are carried out and their replies are lost (T9)."""
    commit = lab.seen_redis.sha_of("commit")
    for mark in (commit, _CLAIMING, commit, _CLAIMING, commit, _CLAIMING):
        slot = await _busy_worker(lab)
        (data,) = lab.network.of(slot, "redis")
        started, cut = time.monotonic(), asyncio.Event()

        def lose(data: Pair = data, cut: asyncio.Event = cut) -> None:
            data.cut("replies", "lose")
            cut.set()

        data.requests.watch_for(mark, lose)
        await asyncio.wait_for(cut.wait(), _WAIT_S)
        await asyncio.sleep(0.2)
        data.reset()
        data.heal()
        note(lab, "lost-replies", slot, started)
        await asyncio.sleep(0.3)


async def master_without_redis(lab: Lab) -> None:
    """The master, and it alone, loses Redis for good: another one must take over."""
    master = await until(lab.master, what="a master")
    await until(lambda: fetched(lab) >= 12, what="requests")
    started = time.monotonic()
    (data,) = lab.network.of(master.slot, "redis")
    data.cut("both", "hold")
    await until(lambda: (m := lab.master()) and m.slot != master.slot, what="a successor")
    await until(lambda: lab.job_state() == "finished", what="the end")
    lab.network.heal()
    note(lab, "cut-master-redis", master.id, started)


async def lost_lock_replies(lab: Lab) -> None:
    """The reply to the taking of locks is lost: taken, and nobody knows (T9)."""
    started = time.monotonic()
    pairs = list(lab.network.of("w1", "etcd"))
    cut = asyncio.Event()

    def lose() -> None:
        for pair in pairs:
            pair.cut("replies", "lose")
        cut.set()

    for pair in pairs:
        pair.requests.watch_for(b"/locks/tasks/", lose)
    await lab.submit()
    await asyncio.wait_for(cut.wait(), _WAIT_S)
    await until(lambda: lab.seen_etcd.latest(f"locks/tasks/{JOB}/0"), what="the lock")
    await asyncio.sleep(0.2)
    for pair in pairs:
        pair.reset()
        pair.heal()
    note(lab, "lost-replies", "w1 etcd", started)


async def hand_over(lab: Lab) -> None:
    """A worker that owns everything drains, and another one goes on within the delay."""
    await until(lambda: fetched(lab) >= 4, what="requests")
    owner = await until(
        lambda: next((n for n in lab.slots.current.values() if holds(lab, n.id)), None)
    )
    started = time.monotonic()
    lab.start_node("w2")
    owner.is_meant_to_end = True
    owner.signal(signal.SIGTERM)
    await until(lambda: not owner.is_running, what="the drain")
    note(lab, "drain-worker", owner.id, started)


SCENARIOS = {
    "late-calls": Scenario(late_calls.__doc__ or "", late_calls, lambda: plain(slow_s=0.1)),
    "late-master": Scenario(
        late_master.__doc__ or "", late_master, lambda: plain(pages=30), masters=2,
    ),
    "cut-from-etcd": Scenario(
        cut_from_etcd.__doc__ or "", cut_from_etcd, lambda: plain(pages=60), workers=1
    ),
    "kill-with-pages": Scenario(
        kill_with_pages.__doc__ or "", kill_with_pages, lambda: plain(slow_s=0.8, pages=6),
        end_s=40.0, idle=frozenset({"w2"}),
    ),
    "slow-looks": Scenario(
        slow_looks.__doc__ or "", slow_looks, lambda: chain(400, 12),
        options={"delay": 0, "shards": 64}, workers=1,
    ),
    "late-offer": Scenario(late_offer.__doc__ or "", late_offer, fickle),
    "restart-redis": Scenario(restart_redis.__doc__ or "", restart_redis, plain),
    "rolled-back": Scenario(
        rolled_back.__doc__ or "", rolled_back, lambda: chain(12, 1), appendfsync="everysec",
    ),
    "ghost": Scenario(
        ghost.__doc__ or "", ghost, lambda: one_slow(9.0), lease_ttl_s=3.0,
        options={"timeout": 12, "shards": 1}, end_s=60.0,
    ),
    "crash-with-links": Scenario(
        crash_with_links.__doc__ or "", crash_with_links, lambda: chain(30, 4)
    ),
    "master-without-redis": Scenario(
        master_without_redis.__doc__ or "", master_without_redis, lambda: plain(pages=30),
        masters=2, lease_ttl_s=4.0,
    ),
    "lost-replies": Scenario(
        lost_replies.__doc__ or "", lost_replies, lambda: plain(pages=30), end_s=40.0
    ),
    "lost-lock-replies": Scenario(
        lost_lock_replies.__doc__ or "", lost_lock_replies, plain, workers=1, end_s=40.0
    ),
    "hand-over": Scenario(
        hand_over.__doc__ or "", hand_over, lambda: plain(hosts=4, pages=2),
        # Longer than a drain takes, which waits for the turn of what was claimed.
        options={"delay": 15}, end_s=150.0, idle=frozenset({"w2"}),
    ),
}  # fmt: skip
SUBMITS = frozenset(
    {"late-master", "late-offer", "crash-with-links", "rolled-back", "lost-lock-replies"}
)
"""These submit the job themselves, once everything is prepared."""
