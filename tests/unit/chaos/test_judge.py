"""The judge of the fault laboratory finds each violation in a history that was doctored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.chaos.graph import UNLINKED, Graph, Host, Page, generated, walk
from tests.chaos.history import Change, Fault, History, Request, Result, Write
from tests.chaos.judge import judged

GRAPH = Graph(
    hosts=(
        Host(pages={"/": Page(links=((0, "/a"), (0, "/old"), (1, "/"), (0, "/private/x"))),
                    "/a": Page(kind="flaky", refusals=1, links=((2, "/"),)),
                    "/old": Page(kind="redirect", links=((0, "/gone"),)),
                    "/gone": Page(kind="gone"),
                    "/private/x": Page()},
             robots="User-agent: *\nDisallow: /private/\n", denied="/private/"),
        Host(pages={"/": Page()}, robots="User-agent: *\nCrawl-delay: 1\n", crawl_delay_s=1.0),
        Host(pages={"/": Page()}, is_in_scope=False),
    )
)  # fmt: skip
OUTCOMES = {
    "http://127.0.0.1:80/": ("fetched", 200),
    "http://127.0.0.1:80/a": ("fetched", 200),
    "http://127.0.0.1:80/old": ("redirected", 301),
    "http://127.0.0.1:80/gone": ("fetched", 404),
    "http://127.0.0.1:80/private/x": ("denied", None),
    "http://127.0.0.1:81/": ("fetched", 200),
}


def record(url: str, *, token: int = 20) -> dict[str, Any]:
    outcome, status = OUTCOMES[url]
    return {"url": url, "outcome": outcome, "status": status, "token": token, "error": None}


def request(host: int, path: str, started: float, *, status: int = 200) -> Request:
    return Request(host, path, started, started + 0.1, status, complete=True)


def write(
    script: str, *, token: int | None = None, term: int | None = None, node: str = "w1-1",
    at: float = 95.2,
) -> Write:  # fmt: skip
    return Write(at, node, script, 0, token, term, 1)


def sound() -> History:
    return History(
        seed=1,
        profile="none",
        graph=GRAPH,
        ports=[80, 81, 82],
        delay_s=0.5,
        per_host=1,
        requests=[
            request(0, "/robots.txt", 0.0),
            request(0, "/", 0.7),
            request(0, "/a", 1.4, status=503),
            request(0, "/a", 2.1),
            request(0, "/old", 2.8, status=301),
            request(0, "/gone", 3.5, status=404),
            request(1, "/robots.txt", 0.0),
            request(1, "/", 1.2),
        ],
        changes=[
            Change(10, "election/master", 10, 90.0, {"node": "m1-1"}),
            Change(20, "locks/tasks/chaos/0", 20, 91.0, {"owner": "w1-1"}),
            Change(25, "locks/tasks/chaos/0", 0, 95.0, ""),
            Change(30, "locks/tasks/chaos/0", 30, 96.0, {"owner": "w2-1"}),
            Change(40, "jobs/chaos", 5, 200.0, {"state": "finished"}),
        ],
        writes=[
            write("create", term=10, node="m1-1"),
            write("adopt", token=20),
            write("claim", token=20),
            write("commit", token=20),
            write("adopt", token=30, node="w2-1"),
            write("commit", token=30, node="w2-1"),
            write("seal", term=10, node="m1-1"),
        ],
        results=[Result(0, f"{n}-0", record(url)) for n, url in enumerate(OUTCOMES, 1)],
        exported=[record(url) for url in OUTCOMES],
        final={
            "state": "finished",
            "counters": {
                "discovered": 6, "queued": 0, "delayed": 0, "in_flight": 0, "fetched": 4,
                "not_modified": 0, "redirected": 1, "denied": 1, "failed": 0, "dead": 0,
                "dropped": 0,
            },
        },
    )  # fmt: skip


def kinds(history: History) -> set[str]:
    return {violation.kind for violation in judged(history).violations}


def test_a_sound_history_has_no_violation() -> None:
    assert [] == judged(sound()).violations


def test_what_is_reachable_is_known_without_the_crawler() -> None:
    found = walk(GRAPH)
    assert OUTCOMES == {
        f"http://127.0.0.1:8{host}{path}": end for (host, path), end in found.items()
    }
    generated_graph = generated(3)
    everything = sum(len(host.pages) for host in generated_graph.hosts if host.is_in_scope)
    assert everything - len(UNLINKED) == len(walk(generated_graph))
    assert everything == len(walk(generated_graph, [(0, path) for path in UNLINKED]))


Doctor = Callable[[History], None]


def lost(history: History) -> None:
    del history.exported[1]


def wrong_outcome(history: History) -> None:
    history.exported[0] = history.exported[0] | {"outcome": "dead"}


def invented(history: History) -> None:
    history.exported.append(record("http://127.0.0.1:80/") | {"url": "http://127.0.0.1:82/"})


def twice_in_the_export(history: History) -> None:
    history.exported.append(history.exported[0])


def twice_in_the_streams(history: History) -> None:
    history.results.append(history.results[0])


def never_ended(history: History) -> None:
    history.final["state"] = "running"


def miscounted(history: History) -> None:
    history.final["counters"]["discovered"] = 7


def miscounted_outcome(history: History) -> None:
    history.final["counters"]["fetched"] = 3
    history.final["counters"]["dead"] = 1


def older_token(history: History) -> None:
    history.writes.append(write("commit", token=20))


def older_token_in_the_stream(history: History) -> None:
    history.results.insert(0, Result(0, "0-1", record("http://127.0.0.1:80/", token=30)))


def older_term(history: History) -> None:
    history.changes.insert(0, Change(7, "election/master", 7, 80.0, {"node": "m2-1"}))
    history.writes.append(write("apply", term=7, node="m2-1"))


def two_masters(history: History) -> None:
    history.writes.append(write("apply", term=10, node="m2-1"))


def foreign_token(history: History) -> None:
    history.writes.append(write("commit", token=30, node="w1-1"))


def token_back(history: History) -> None:
    history.changes.append(Change(50, "locks/tasks/chaos/0", 0, 97.0, ""))
    history.changes.append(Change(29, "locks/tasks/chaos/0", 29, 98.0, {"owner": "w2-1"}))


def after_the_end(history: History) -> None:
    history.writes.append(write("claim", token=30, node="w2-1", at=201.0))


def before_it_adopted(history: History) -> None:
    history.writes.append(Write(150.0, "w2-1", "commit", 0, 30, None, 2))


def without_its_lock(history: History) -> None:
    history.writes.insert(4, write("commit", token=20, at=97.0))


def left_over(history: History) -> None:
    history.final["counters"] |= {"queued": 1, "discovered": 7}


def too_soon(history: History) -> None:
    history.requests.append(request(0, "/gone", 3.9))


def overlapping(history: History) -> None:
    history.requests.append(request(0, "/gone", 3.55))


def sooner_than_its_crawl_delay(history: History) -> None:
    history.requests.append(request(1, "/", 2.0))


def denied(history: History) -> None:
    history.requests.append(request(0, "/private/x", 9.0))


def out_of_scope(history: History) -> None:
    history.requests.append(request(2, "/", 9.0))


def died(history: History) -> None:
    history.died.append("w1-1 ended by itself with code 1")


def traceback(history: History) -> None:
    history.tracebacks.append("w1-1: KeyError")


def flushed_and_yet_finished(history: History) -> None:
    history.faults.append(Fault("flush-redis", "", 1.0, 1.1, damages=True))


@pytest.mark.parametrize(
    ("doctor", "kind"),
    [
        (lost, "lost"), (wrong_outcome, "outcome"), (invented, "invented"),
        (twice_in_the_export, "twice"), (twice_in_the_streams, "twice"), (never_ended, "hang"),
        (miscounted, "counters"), (miscounted_outcome, "counters"), (older_token, "stale write"),
        (older_token_in_the_stream, "stale write"), (older_term, "stale write"),
        (two_masters, "two masters"), (foreign_token, "foreign token"), (token_back, "token"),
        (after_the_end, "after the end"), (before_it_adopted, "unverified run"),
        (without_its_lock, "without lock"), (left_over, "counters"),
        (too_soon, "impolite"), (overlapping, "impolite"),
        (sooner_than_its_crawl_delay, "impolite"), (denied, "impolite"), (out_of_scope, "impolite"),
        (died, "node died"), (traceback, "traceback"), (flushed_and_yet_finished, "damage"),
    ],
)  # fmt: skip
def test_each_violation_is_found(doctor: Doctor, kind: str) -> None:
    history = sound()
    doctor(history)
    assert kind in kinds(history)


def test_above_one_connection_starts_are_spaced_and_counted() -> None:
    history = msgspec.structs.replace(sound(), per_host=2)
    assert set() == kinds(history)
    history.requests.append(Request(0, "/gone", 3.8, 3.9, 404, complete=True))
    assert {"impolite"} == kinds(history)
    slow = [Request(1, "/", 5.0 + n, 9.0, 200, complete=True) for n in range(3)]
    history = msgspec.structs.replace(sound(), per_host=2, requests=sound().requests + slow)
    assert {"impolite"} == kinds(history)


def test_one_request_of_a_stopped_worker_may_be_late_and_no_second_one() -> None:
    history = sound()
    history.faults.append(Fault("stop-worker", "w1-1", 1.0, 3.85))
    too_soon(history)
    assert set() == kinds(history)
    history.requests.append(request(1, "/", 1.9))
    assert {"impolite"} == kinds(history)


def test_a_page_budget_is_kept_to_the_page() -> None:
    history = msgspec.structs.replace(sound(), max_pages=4)
    assert set() == kinds(history)
    history = msgspec.structs.replace(sound(), max_pages=3)
    assert {"budget"} == kinds(history)
    history.exported[-1] |= {"outcome": "dropped", "status": None}
    history.final["counters"] |= {"fetched": 3, "dropped": 1}
    assert set() == kinds(history)


def test_a_restarted_observer_does_not_hide_the_end() -> None:
    history = sound()
    history.exported.clear()
    assert {"lost", "counters"} == kinds(history)
