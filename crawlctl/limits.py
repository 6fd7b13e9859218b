"""What limits a running job now: politeness, the sites, CPU, Redis, or nothing but its own end.

Judged from facts that are there anyway: the counters and host queues of the job in Redis, and what
its workers say of themselves in etcd. A worker's figures are of all its jobs together, and some
seconds old.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from common.model.job import JobState
from crawlctl.show import quantity

Limit = Literal["state", "workers", "end", "visits", "politeness", "sites", "cpu", "redis"]

BUSY_CPU: Final = 0.85
"""Share of a core from which on a worker process has no more to give."""

_HARDLY: Final = 0.5
"""Pages under way, on average, below which there is no telling by them."""
_NEARLY_NONE: Final = 0.1
"""Hosts due for each that waits, up to which nearly every host waits."""

_PARTS: Final[dict[Limit, tuple[str, ...]]] = {
    "politeness": ("robots", "pace"),
    "sites": ("connect", "first_byte", "body"),
    "cpu": ("parse", "plugins", "links"),
    "redis": ("settle",),
}
"""The stages of a page (worker/stages.py) by what it waits for there."""


class WorkerLook(NamedTuple):
    """What a worker that owns part of the job says of itself."""

    id: str
    cpu: float
    """Share of one core."""
    stages: dict[str, float]
    """Pages in each stage, on average."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The facts."""

    job: str
    """Its id."""
    state: JobState
    is_kept_open: bool
    without_worker: str | None
    """Why no worker there is takes parts of it; None where one would."""
    next_visit_at: str | None
    """When the first of the pages that are visited again is due; None where none is."""
    waiting: int
    """URLs queued or delayed."""
    in_flight: int
    hosts_due: int
    """Hosts with queued URLs that may be asked now."""
    hosts_waiting: int
    """Hosts with queued URLs that may not: their delay runs."""
    hosts_busy: int
    """Hosts with requests under way."""
    workers: Sequence[WorkerLook]

    @property
    def pages_under_way(self) -> float:
        """Return how many pages of the workers are in any stage."""
        return sum(map(self.pages_waiting_for, _PARTS))

    @property
    def is_paced(self) -> bool:
        """Tell whether it is their delay that nearly all hosts with queued URLs wait for.

        Where hardly a page is under way nothing keeps workers from a host that is due: it is so
        for a moment, and the hosts that wait need only be the most.
        """
        share = 0.5 if self.pages_under_way < _HARDLY else _NEARLY_NONE
        return (
            self.hosts_waiting > 0
            and self.hosts_waiting >= self.hosts_busy
            and self.hosts_due <= share * self.hosts_waiting
        )

    def pages_waiting_for(self, part: Limit) -> float:
        """Return how many pages of the workers are in the stages of a part."""
        names = _PARTS[part]
        return sum(one.stages.get(name, 0.0) for one in self.workers for name in names)


class Verdict(NamedTuple):
    """What limits the job, why that is said, and what would change it."""

    limit: Limit
    reason: str
    remedy: str


def judge(now: Situation) -> Verdict:
    """Return what limits a job."""
    if now.state is not JobState.RUNNING:
        return Verdict("state", f"the job is {now.state.value}", _of_state(now))
    if not now.workers:
        reason = now.without_worker or "no worker owns a part of it yet"
        remedy = "nothing, if it passes: the master gives its parts to the workers there are"
        if now.without_worker:
            remedy = "a worker that takes it; 'crawlctl nodes' shows which there are, if any"
        return Verdict("workers", reason, remedy)
    if now.waiting + now.in_flight == 0:
        return _at_rest(now)
    busiest = max(now.workers, key=lambda one: one.cpu)
    if busiest.cpu >= BUSY_CPU:
        reason = f"worker {busiest.id} uses {busiest.cpu:.0%} of a core"
        remedy = "start more workers, if URLs of other hosts are queued ('crawlctl job hosts')"
        return Verdict("cpu", reason, remedy)
    if now.is_paced:
        others = f" and {now.hosts_due} due" if now.hosts_due else ""
        count = quantity(now.hosts_waiting, "host") + " waiting for the delay or a turn" + others
        remedy = "more hosts; or, where they are yours, a shorter --delay or a higher --per-host"
        remedy += " (--per-ip, --per-domain, where they are given)"
        return Verdict("politeness", f"with queued URLs there is {count}", remedy)
    if now.pages_under_way < _HARDLY:
        return _in_passing(now)
    return _by_pages(now)


def _of_state(now: Situation) -> str:
    """Return what would change a job that does not run."""
    match now.state:
        case JobState.PAUSED:
            return f"'crawlctl job resume {now.job}' lets it go on"
        case JobState.PENDING:
            return (
                "a master starts it once its seeds are in; 'crawlctl nodes' shows if there is one"
            )
        case _:
            return "nothing does, it is over; submit another job to crawl again"


def _at_rest(now: Situation) -> Verdict:
    """Judge a job that runs and has nothing to fetch."""
    close = f"'crawlctl job close {now.job}' lets it finish"
    if now.next_visit_at is not None:
        reason = f"no page is due; the next visit is due at {now.next_visit_at}"
        return Verdict("visits", reason, f"a job with a shorter --recrawl; {close}")
    if now.is_kept_open:
        reason = "nothing is left to fetch, and the job is kept open"
        return Verdict("end", reason, f"add seeds ('crawlctl job add {now.job} URL'); {close}")
    return Verdict("end", "nothing is left to fetch", "nothing, it finishes; or add seeds")


def _in_passing(now: Situation) -> Verdict:
    """Judge by the hosts where the pages are too few to tell."""
    again = "nothing, if it passes: look again in a while"
    if now.hosts_due > 0:
        reason = f"{quantity(now.hosts_due, 'host')} to ask now, and hardly a page is under way"
        return Verdict("workers", reason, f"{again}; else see 'crawlctl nodes'")
    if now.hosts_busy > 0:
        reason = f"{quantity(now.hosts_busy, 'host')} asked just now, hardly a page before"
        return Verdict("sites", reason, f"{again}; else see 'crawlctl job hosts {now.job}'")
    reason = "no host is to be asked: what is left waits for another try, or its host is blocked"
    return Verdict("sites", reason, f"see 'crawlctl job hosts {now.job}'")


def _by_pages(now: Situation) -> Verdict:
    """Judge by where the pages are that are being worked on."""
    pages = {part: now.pages_waiting_for(part) for part in _PARTS}
    most = max(pages, key=lambda part: pages[part])
    share = f"{pages[most]:.1f} of {now.pages_under_way:.1f} pages under way, on average,"
    match most:
        case "politeness":
            return Verdict(most, f"{share} wait for robots.txt or their turn", "more hosts")
        case "redis":
            remedy = "a faster disk under the server's log, or a server nearer to the workers"
            return Verdict(most, f"{share} wait to be written to Redis", remedy)
        case "cpu":
            return Verdict(most, f"{share} are being parsed", "start more workers")
        case _:
            reason = f"{share} wait for {quantity(now.hosts_busy, 'host')} to answer"
            remedy = "more hosts, a higher --per-host where they are yours, or more --concurrency"
            return Verdict("sites", reason, remedy)


def document(now: Situation) -> dict[str, Any]:
    """Return the JSON shape of a profile."""
    verdict = judge(now)
    names = dict.fromkeys(name for one in now.workers for name in one.stages)
    return {
        **verdict._asdict(),
        "hosts": {"due": now.hosts_due, "waiting": now.hosts_waiting, "busy": now.hosts_busy},
        "stages": {
            name: round(sum(one.stages.get(name, 0.0) for one in now.workers), 2) for name in names
        },
        "workers": [one._asdict() for one in now.workers],
    }
