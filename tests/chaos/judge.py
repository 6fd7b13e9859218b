"""Tells from a history alone whether the promises held.

The judge shares no code with the crawler and asks nobody: the walk of the graph knows what must be
found, the site's log shows what was really sent, etcd's history who owned what, Redis' history who
wrote what. Each check returns violations; none means that the promise held as far as anybody could
see it.

One thing is not promised (docs/guarantees.md): a process that is stopped between its last look at
the clock and the kernel's send sends one request late. One such request for each time a worker was
stopped is no violation.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.chaos.graph import walk
from tests.chaos.history import Change, Fault, History, Request

SLACK_S = 0.015
"""The site's process needs a moment to notice a request or an end; its own lag is added."""
LATE_S = 1.5
"""How soon after it goes on a stopped process sends what it had decided on before."""
LOCK_GRACE_S = 0.5
_STOPPABLE = (
    "cut-worker-etcd",
    "cut-master-etcd",
    "kill-worker",
    "kill-master",
    "kill-etcd-leader",
)
STOPS = frozenset({"stop-worker", "block-worker"})


class Violation(NamedTuple):
    kind: str
    text: str


class Verdict(NamedTuple):
    violations: list[Violation]
    totals: Counter[str]


def judged(history: History) -> Verdict:
    """Return every violation, and the figures of the run."""
    is_damaged = any(fault.damages for fault in history.faults)
    checks: list[Callable[[History], list[Violation]]] = [
        tokens_grow, one_node_a_token, one_master_a_term, no_stale_write, none_without_a_lock,
        verified_in_each_run, nothing_after_the_end, nodes_are_well, polite,
    ]  # fmt: skip
    if history.max_pages:
        checks.append(budget_kept)
    checks += [damage_is_told] if is_damaged else [nothing_lost, counted_right]
    checks.append(nothing_twice)
    violations = [violation for check in checks for violation in check(history)]
    return Verdict(violations, totals(history, violations))


def totals(history: History, violations: Sequence[Violation]) -> Counter[str]:
    kinds = Counter(violation.kind for violation in violations)
    acquired: Counter[str] = Counter(
        change.key for change in history.changes if _is_taken(change, "locks/tasks/")
    )
    asked = Counter(
        (request.host, request.path) for request in history.requests if request.complete
    )
    expected = Counter(dict.fromkeys(asked, 1))
    for number, host in enumerate(history.graph.hosts):
        for path, page in host.pages.items():
            expected[number, path] += page.refusals
    refetches = sum(
        max(0, count - expected[ref]) for ref, count in asked.items() if ref[1] != "/robots.txt"
    )
    return Counter(
        faults=len(history.faults),
        takeovers=sum(count - 1 for count in acquired.values()),
        masters=sum(_is_taken(change, "election/") for change in history.changes),
        refetches=refetches,
        lost=kinds["lost"],
        twice=kinds["twice"],
        stale=kinds["stale write"],
        impolite=kinds["impolite"],
        other=sum(kinds.values())
        - kinds["lost"] - kinds["twice"] - kinds["stale write"] - kinds["impolite"],
    )  # fmt: skip


def _is_taken(change: Change, prefix: str) -> bool:
    """Tell whether a change created a key (and did not rewrite or delete it)."""
    return change.key.startswith(prefix) and change.created == change.revision


# ------------------------------------------------------------------------------------------ results


def nothing_lost(history: History) -> list[Violation]:
    """Every URL in scope ended, as it had to; nothing else did."""
    found: list[Violation] = []
    state = history.final.get("state")
    if state != "finished":
        found.append(Violation("hang", f"the job is {state} in the end, not finished"))
    records = {record["url"]: record for record in history.exported}
    names = {
        f"http://127.0.0.1:{history.ports[host]}{path}": ends
        for (host, path), ends in walk(history.graph, history.added).items()
    }
    allowed = {
        f"http://127.0.0.1:{history.ports[host]}{path}" for host, path in history.maybe_added
    }
    for url, (outcome, status) in names.items():
        record = records.get(url)
        if record is None:
            # What a page behind the budget would lead to is never known.
            if state == "finished" and not history.max_pages:
                found.append(Violation("lost", f"{url} has no result"))
        elif (record["outcome"], record["status"]) != (outcome, status) and not (
            history.max_pages and record["outcome"] == "dropped"
        ):
            found.append(
                Violation(
                    "outcome",
                    f"{url} ended as {record['outcome']} {record['status']} "
                    f"({record['error']}), not as {outcome} {status}",
                )
            )
    found += [
        Violation("invented", f"{url} is not in scope, yet has a result")
        for url in records
        if url not in names and url not in allowed
    ]
    return found


def nothing_twice(history: History) -> list[Violation]:
    """No URL has two results, neither in the export nor in the streams."""
    exported = Counter(record["url"] for record in history.exported)
    stored = Counter(result.record["url"] for result in history.results)
    return [
        Violation("twice", f"{url} has {count} results in the {where}")
        for where, counts in (("export", exported), ("streams", stored))
        for url, count in counts.items()
        if count > 1
    ]


def counted_right(history: History) -> list[Violation]:
    """The counters add up, and count the results."""
    counters = history.final.get("counters", {})
    ended = ("fetched", "not_modified", "redirected", "denied", "failed", "dead", "dropped")
    total = sum(counters.get(name, 0) for name in ("queued", "delayed", "in_flight", *ended))
    found = []
    if counters.get("discovered") != total:
        found.append(Violation("counters", f"discovered is not the sum of the states: {counters}"))
    if history.final.get("state") == "finished":
        found += [
            Violation("counters", f"finished, but {counters[name]} are {name}")
            for name in ("queued", "delayed", "in_flight")
            if counters.get(name)
        ]
    outcomes = Counter(record["outcome"] for record in history.exported)
    found += [
        Violation("counters", f"{name}: {counters.get(name)} counted, {outcomes[name]} exported")
        for name in ended
        if counters.get(name, 0) != outcomes[name]
    ]
    return found


def budget_kept(history: History) -> list[Violation]:
    """Exactly as many pages are fetched as the job may, where there are more."""
    fetched = sum(record["outcome"] == "fetched" for record in history.exported)
    there = sum(outcome == "fetched" for outcome, _ in walk(history.graph, history.added).values())
    wanted = min(there, history.max_pages or there)
    if history.final.get("state") != "finished" or fetched == wanted:
        return []
    return [Violation("budget", f"{fetched} pages were fetched, not {wanted}")]


def damage_is_told(history: History) -> list[Violation]:
    """A job whose data was deleted must say so, and never be called finished."""
    state = history.final.get("state")
    return [] if state == "damaged" else [Violation("damage", f"its data is gone; it is {state}")]


# ---------------------------------------------------------------------------------------- ownership


def tokens_grow(history: History) -> list[Violation]:
    """Each acquisition of a lock, and each term, has a higher token than the one before."""
    last: dict[str, int] = {}
    held: dict[str, int] = {}
    found = []
    for change in history.changes:
        if not change.key.startswith(("locks/", "election/")):
            continue
        if change.created == 0:
            held.pop(change.key, None)
        elif change.created != held.get(change.key):
            if change.created <= last.get(change.key, 0):
                found.append(Violation("token", f"{change.key}: {change.created} after {last}"))
            held[change.key] = last[change.key] = change.created
    return found


def no_stale_write(history: History) -> list[Violation]:
    """No write is accepted under an older token, or term, than one accepted before."""
    found = []
    newest: Counter[tuple[str, int]] = Counter()
    for write in history.writes:
        for what, number in (("token", write.token), ("term", write.term)):
            if not number:
                continue
            if number < newest[what, write.shard]:
                found.append(
                    Violation(
                        "stale write",
                        f"shard {write.shard}: {write.script} of {write.node} was accepted under "
                        f"{what} {number} after {newest[what, write.shard]}",
                    )
                )
            newest[what, write.shard] = max(newest[what, write.shard], number)
    tokens: dict[int, int] = defaultdict(int)
    for result in history.results:  # also where the observer was away
        token = result.record["token"]
        if token < tokens[result.shard]:
            found.append(
                Violation(
                    "stale write",
                    f"shard {result.shard}: result {result.id} stands under token {token}, behind "
                    f"one of {tokens[result.shard]}",
                )
            )
        tokens[result.shard] = max(tokens[result.shard], token)
    return found


def none_without_a_lock(history: History) -> list[Violation]:
    """A node stops by its own clock before its lock is gone.

    Only where every fault of the run lets it: a stopped process, a call held on its way and a lock
    that was taken from its owner are what tokens are for.
    """
    if any(not fault.name.startswith(_STOPPABLE) for fault in history.faults):
        return []
    gone: dict[tuple[int, int], float] = {}
    held: dict[str, int] = {}
    for change in history.changes:
        if change.key.startswith("locks/tasks/"):
            if change.created == 0 and change.key in held:
                gone[int(change.key.rpartition("/")[2]), held.pop(change.key)] = change.at
            elif change.created:
                held[change.key] = change.created
    return [
        Violation(
            "without lock",
            f"shard {write.shard}: {write.script} of {write.node} under token {write.token} "
            f"{write.at - at:.2f} s after its lock was gone",
        )
        for write in history.writes
        if write.token
        and (at := gone.get((write.shard, write.token))) is not None
        and write.at > at + LOCK_GRACE_S
    ]


def verified_in_each_run(history: History) -> list[Violation]:
    """After a restart of the server an owner adopts a shard anew before it writes there."""
    adopted: set[tuple[int, int, int]] = set()
    found = []
    for write in history.writes:
        if not write.token or write.run == 0:
            continue
        where = (write.run, write.shard, write.token)
        if write.script == "adopt":
            adopted.add(where)
        elif where not in adopted:
            found.append(
                Violation(
                    "unverified run",
                    f"shard {write.shard}: {write.script} of {write.node} under token "
                    f"{write.token} in life {write.run} of the server, before it adopted",
                )
            )
    return found


def one_node_a_token(history: History) -> list[Violation]:
    """A token is used by the node that etcd gave it to, and for that shard alone."""
    given = {
        (int(change.key.rpartition("/")[2]), change.created): change.value["owner"]
        for change in history.changes
        if _is_taken(change, "locks/tasks/")
    }
    found = []
    for write in history.writes:
        if write.token is None:
            continue
        owner = given.get((write.shard, write.token))
        if owner != write.node:
            found.append(
                Violation(
                    "foreign token",
                    f"shard {write.shard}: {write.script} of {write.node} under token "
                    f"{write.token}, which etcd gave to {owner}",
                )
            )
    return found


def one_master_a_term(history: History) -> list[Violation]:
    """At most one node acts in a term: the one that was elected."""
    elected = {
        change.created: change.value["node"]
        for change in history.changes
        if _is_taken(change, "election/")
    }
    return [
        Violation(
            "two masters",
            f"{write.node} ran {write.script} in term {write.term} of {elected.get(write.term)}",
        )
        for write in history.writes
        if write.term and elected.get(write.term) != write.node
    ]


def nothing_after_the_end(history: History) -> list[Violation]:
    """Once the job is over no owner is given anything, and nothing is committed."""
    ends = [
        change.at
        for change in history.changes
        if change.key.startswith("jobs/")
        and isinstance(change.value, dict)
        and change.value.get("state") == "finished"
    ]
    if not ends:
        return []
    working = ("offer", "claim", "commit", "retry", "release", "requeue", "promote")
    return [
        Violation(
            "after the end", f"{write.script} of {write.node} on shard {write.shard} after the end"
        )
        for write in history.writes
        if write.script in working and write.at > ends[0]
    ]


def nodes_are_well(history: History) -> list[Violation]:
    """No node ended by itself or said that its own code failed."""
    return [
        *(Violation("node died", text) for text in history.died),
        *(Violation("traceback", text) for text in history.tracebacks),
    ]


# --------------------------------------------------------------------------------------- politeness


class _Gap(NamedTuple):
    host: int
    earlier: Request
    later: Request
    wanted_s: float
    seen_s: float


def polite(history: History) -> list[Violation]:
    """Delay and concurrency of each host held in the server's own log."""
    gaps = [
        gap
        for host in range(len(history.graph.hosts))
        for gap in _gaps_of(host, history)
        if gap.seen_s < gap.wanted_s - SLACK_S - gap.earlier.lag_s - gap.later.lag_s
    ]
    found = [
        Violation(
            "impolite",
            f"host {gap.host}: {gap.later.path} {gap.seen_s:.3f} s after {gap.earlier.path}, "
            f"not {gap.wanted_s:g} s",
        )
        for gap in _without_late(gaps, history.faults)
    ]
    outside = {
        request.host for request in history.requests
        if not history.graph.hosts[request.host].is_in_scope
    }  # fmt: skip
    found += [Violation("impolite", f"host {host} is out of scope") for host in outside]
    return found + _too_many_at_once(history) + _denied(history)


def _gaps_of(host: int, history: History) -> list[_Gap]:
    requests = sorted(
        (request for request in history.requests if request.host == host),
        key=lambda request: request.started,
    )
    rules = history.graph.hosts[host]
    gaps = []
    delay_s, last = history.delay_s, None
    for request in requests:
        if last is not None:
            since = last.started if history.per_host > 1 else last.ended
            gaps.append(_Gap(host, last, request, delay_s, request.started - since))
        if last is None or history.per_host > 1 or request.ended > last.ended:
            last = request
        if request.path == "/robots.txt" and request.complete and history.per_host == 1:
            delay_s = max(delay_s, rules.crawl_delay_s)
    return gaps


def _without_late(gaps: Sequence[_Gap], faults: Sequence[Fault]) -> list[_Gap]:
    """Take out one request for each time a worker went on after it was stopped."""
    left = list(gaps)
    for fault in faults:
        if fault.name not in STOPS:
            continue
        late = [gap for gap in left if 0 <= gap.later.started - fault.ended <= LATE_S]
        if late:
            # The one that came late spoils the gap before it, and the one behind it.
            paths = {(late[0].host, late[0].later.started)}
            left = [
                gap
                for gap in left
                if (gap.host, gap.later.started) not in paths
                and (gap.host, gap.earlier.started) not in paths
            ]
    return left


def _too_many_at_once(history: History) -> list[Violation]:
    if history.per_host == 1:
        return []  # an overlap is a gap below the delay
    found = []
    for host in range(len(history.graph.hosts)):
        changes = sorted(
            change
            for request in history.requests
            if request.host == host
            for change in ((request.started + request.lag_s, 1), (request.ended - SLACK_S, -1))
        )
        most = max(itertools.accumulate(step for _, step in changes), default=0)
        if most > history.per_host:
            found.append(Violation("impolite", f"host {host}: {most} requests at once"))
    return found


def _denied(history: History) -> list[Violation]:
    return [
        Violation("impolite", f"host {request.host}: {request.path} is denied by robots.txt")
        for request in history.requests
        if (denied := history.graph.hosts[request.host].denied) and request.path.startswith(denied)
    ]
