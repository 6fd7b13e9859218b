"""The answer of every command as a program reads it: exit code and JSON shape of the contract.

What a command does is tested where its subject is; tests/repo/test_commands.py sees to it that no
command is without a test.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import crawlctl, environment, eventually, records, running
from tests.support.servers import EtcdServer, RedisServer
from tests.support.site import Page, Site
from tests.system.conftest import Command

TEXT, WHOLE, NUMBER = (str,), (int,), (int, float)
NULL = (type(None),)
LISTED, OBJECT, FLAG = (list,), (dict,), (bool,)
Shape = dict[str, tuple[type, ...]]

LOCK: Shape = {
    "name": TEXT, "kind": TEXT, "owner": TEXT, "token": WHOLE, "age_seconds": (*NUMBER, *NULL),
    "ttl_seconds": (*NUMBER, *NULL),
}  # fmt: skip
NODE: Shape = {
    "id": TEXT, "role": TEXT, "state": TEXT, "term": (*WHOLE, *NULL), "weight": NUMBER,
    "load": OBJECT, "tasks": WHOLE, "ttl_seconds": (*NUMBER, *NULL), "reasons": LISTED,
}  # fmt: skip
JOB: Shape = {
    "id": TEXT, "state": TEXT, "spec": OBJECT, "created_at": TEXT, "started_at": (*TEXT, *NULL),
    "finished_at": (*TEXT, *NULL), "counters": OBJECT,
}  # fmt: skip
TASK: Shape = {
    "shard": WHOLE, "owner": (*TEXT, *NULL), "token": (*WHOLE, *NULL), "queued": WHOLE,
    "in_flight": WHOLE,
}  # fmt: skip
COUNTERS: Shape = {
    **dict.fromkeys(
        (
            "discovered", "queued", "delayed", "in_flight", "fetched", "not_modified", "redirected",
            "denied", "failed", "dead", "dropped", "filtered", "seen_estimate",
        ),
        WHOLE,
    ),
    "false_positive_estimate": NUMBER, "pages_per_second": NUMBER,
}  # fmt: skip
WHY: Shape = {
    "url": TEXT, "canonical": (*TEXT, *NULL), "state": TEXT, "since": (*TEXT, *NULL),
    "reason": TEXT, "detail": OBJECT,
}  # fmt: skip
LETTER: Shape = {
    "url": TEXT, "code": TEXT, "message": TEXT, "status": (*WHOLE, *NULL), "attempts": WHOLE,
}  # fmt: skip
HOST: Shape = {
    "host": TEXT, "queued": WHOLE, "delayed": WHOLE, "in_flight": WHOLE, "errors": WHOLE,
    "delay": NUMBER, "next_at": (*TEXT, *NULL), "blocked": FLAG,
}  # fmt: skip
CHECK: Shape = {"check": TEXT, "status": TEXT, "detail": TEXT, "remedy": (*TEXT, *NULL)}
OPTIONAL_TEXT, OPTIONAL_WHOLE, OPTIONAL_OBJECT = (*TEXT, *NULL), (*WHOLE, *NULL), (*OBJECT, *NULL)
RECORD: Shape = {
    "url": TEXT, "final_url": OPTIONAL_TEXT, "status": OPTIONAL_WHOLE, "outcome": TEXT,
    "location": OPTIONAL_TEXT, "depth": WHOLE, "referrer": OPTIONAL_TEXT, "fetched_at": TEXT,
    "elapsed_ms": (*NUMBER, *NULL), "ip": OPTIONAL_TEXT, "content_type": OPTIONAL_TEXT,
    "encoding": OPTIONAL_TEXT, "bytes": OPTIONAL_WHOLE, "sha256": OPTIONAL_TEXT, "truncated": FLAG,
    "title": OPTIONAL_TEXT, "outlinks": OPTIONAL_WHOLE, "attempt": WHOLE, "worker": OPTIONAL_TEXT,
    "token": OPTIONAL_WHOLE, "rule": OPTIONAL_TEXT, "error": OPTIONAL_OBJECT,
    "warc": OPTIONAL_OBJECT,
}  # fmt: skip


def assert_shape(found: dict[str, Any], shape: Shape) -> None:
    """Every field of the contract is there, of its type; there may be more."""
    for name, kinds in shape.items():
        assert name in found, f"{name} is missing in {found}"
        assert isinstance(found[name], kinds), f"{name} is {found[name]!r}"


def assert_job(found: dict[str, Any]) -> None:
    assert_shape(found, JOB)
    assert_shape(found["counters"], COUNTERS)


PAGES = {
    "/": Page(title="start", links=["/a", "/down", "/slow"]),
    "/a": Page(), "/down": Page(status=503), "/slow": Page(delay_s=1),
}  # fmt: skip
OPTIONS = ("--allow-private", "--delay", "0.05", "--retries", "0", "--shards", "2")


@pytest.mark.commands(
    "submit", "jobs", "job show", "job hosts", "job close", "job wait", "locks", "locks show",
    "nodes", "why", "dead", "doctor", "export",
)  # fmt: skip
def test_every_answer_has_the_shape_of_the_contract(up: Command, tmp_path: Path) -> None:
    def answer(*arguments: str) -> Any:
        ran = up(*arguments, "--json")
        assert ran.code == 0, ran.err
        return ran.json

    with Site(PAGES) as site:
        submitted = up("submit", site.url("/"), *OPTIONS, "--id", "j", "--keep-open")
        assert (0, "j\n") == (submitted.code, submitted.out), "the id alone is on stdout"
        eventually(lambda: answer("dead", "j"), within_s=60, what="a dead letter")
        shown = answer("job", "show", "j")
        assert_job(shown)
        assert "running" == shown["state"]
        for task in shown["tasks"]:
            assert_shape(task, TASK)
        (listed,) = answer("jobs")
        assert_job(listed)
        assert "tasks" not in listed
        for rows, shape, kinds in (
            (answer("locks"), LOCK, {"master", "task"}),
            (answer("nodes"), NODE, {"master", "worker"}),
        ):
            assert kinds == {row.get("kind", row.get("role")) for row in rows}
            for row in rows:
                assert_shape(row, shape)
        assert_shape(answer("locks", "show", "master"), LOCK)
        assert_shape(answer("why", "j", site.url("/a")), WHY)
        assert_shape(answer("dead", "j")[0], LETTER)
        assert_shape(answer("job", "hosts", "j")[0], HOST)
        for check in answer("doctor")["checks"]:
            assert_shape(check, CHECK)
        assert 0 == up("job", "close", "j").code
        waited = up("job", "wait", "j")
        assert (0, "") == (waited.code, waited.out)
        last = waited.err.splitlines()[-1]
        assert last.startswith("job j is finished: 3 pages, 1 dead in ")
        assert "crawlctl export j" in last
        quiet = up("job", "wait", "j", "-q")
        assert (0, "", "") == quiet
    assert_job(answer("job", "show", "j"))
    exported = up("export", "j", "-o", str(tmp_path / "out.jsonl"))
    assert (0, "") == (exported.code, exported.out)
    found = records(tmp_path / "out.jsonl")
    assert 4 == len(found)
    for record in found:
        assert_shape(record, RECORD)


@pytest.mark.commands("submit", "job wait")
def test_waiting_ends_with_one_line_that_says_how_it_ended(up: Command) -> None:
    with Site({"/": Page()}) as site:
        options = ("--allow-private", "--delay", "0", "--shards", "1", "--wait")
        done = up("submit", site.url("/"), *options, "--id", "good")
        assert (0, "good\n") == (done.code, done.out)
        last = done.err.splitlines()[-1]
        assert last.startswith("job good is finished: 1 page in "), done.err
        assert "crawlctl export good" in last
    gone = up("submit", site.url("/"), *options, "--id", "bad", "--retries", "0", "-q")
    assert (1, "bad\n") == (gone.code, gone.out)
    assert "finished, but no seed answered" in gone.err
    assert 1 == len(gone.err.splitlines())
    assert 0 == up("submit", "http://127.0.0.1:1/", *options[:-1], "--id", "c", "--paused").code
    assert 0 == up("job", "cancel", "c").code
    waited = up("job", "wait", "c")
    assert (1, True) == (waited.code, "job c is cancelled: 0 pages" in waited.err)
    assert 1 == up("job", "wait", "nothing").code


@pytest.mark.commands("locks", "nodes")
@pytest.mark.parametrize(("name", "shape"), [("locks", LOCK), ("nodes", NODE)])
def test_watching_as_json_writes_a_document_a_line(
    up: Command, tmp_path: Path, name: str, shape: Shape
) -> None:
    with running(name, "--watch", "--json", home=tmp_path / "home") as watching:
        assert watching.process.stdout is not None
        for row in json.loads(watching.process.stdout.readline()):
            assert_shape(row, shape)
        watching.interrupt()
        assert 130 == watching.end().code


@pytest.mark.commands("up", "down")
def test_up_and_down_say_what_runs_where(tmp_path: Path) -> None:
    home, data = tmp_path / "home", tmp_path / "data"
    home.mkdir()
    assert 1 == crawlctl("down", home=home).code
    started = crawlctl("up", "--data", str(data), "--workers", "1", home=home)
    try:
        assert (0, "") == (started.code, started.out), started.err
        assert f"up with 1 worker in {data}" in started.err
        assert re.search(r"^etcd [0-9.]+ \(/.*\): 127.0.0.1:", started.err, re.MULTILINE)
        assert re.search(r"^(Redis|Valkey) [0-9.]+ \(/.*\): redis://", started.err, re.MULTILINE)
        again = crawlctl("up", "--data", str(data), "--workers", "1", home=home)
        assert 4 == again.code, again.err
        mixed = crawlctl("jobs", "--redis", "redis://127.0.0.1:1/0", home=home)
        assert (2, True) == (mixed.code, f"in {data} (process" in mixed.err), mixed.err
        drained = crawlctl("nodes", "drain", "worker-1", home=home)
        assert (0, True) == (drained.code, "'crawlctl start-worker'" in drained.err), drained.err
    finally:
        stopped = crawlctl("down", home=home)
    assert (0, True) == (stopped.code, str(data) in stopped.err)
    assert 3 == crawlctl("jobs", home=home).code, "nothing answers at the default endpoints"


@pytest.mark.commands("start-master", "start-worker")
def test_nodes_run_until_they_are_told_to_leave(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str
) -> None:
    where = ("--etcd", etcd_server.endpoint, "--redis", redis_server.url)
    where += ("--cluster", cluster_name)
    for role in ("master", "worker"):
        command = (f"start-{role}", "--id", role, *where)
        with running(*command) as node:
            eventually(
                lambda: (
                    [one["state"] for one in crawlctl("nodes", "--json", *where).json][-1:]
                    in (["active"], ["ready"])
                ),
                within_s=30,
                what=f"the {role}",
            )
            taken = crawlctl(*command)
            assert (4, True) == (taken.code, role in taken.err), "its id is taken"
            node.process.send_signal(signal.SIGTERM)
            ended = node.end()
            assert (0, "") == (ended.code, ended.out), ended.err
        left = {one["id"]: one["state"] for one in crawlctl("nodes", "--json", *where).json}
        assert "offline" == left[role]


@pytest.mark.commands("crawl", "demo-site")
def test_the_demo_site_is_crawled_offline(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with running("demo-site", "--port", "0", "--pages", "20") as demo:
        assert demo.process.stdout is not None
        url = demo.process.stdout.readline().strip()
        host = url.split("/")[2]
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.request("GET", "/")
        assert 200 == connection.getresponse().status
        connection.close()
        options = ("--allow-private", "--delay", "0", "--workers", "1")
        ran = crawlctl("crawl", url, "-o", str(out), *options)
        assert 0 == ran.code, ran.err
        assert re.search(r"^servers: etcd .*\), (Redis|Valkey) .*\)$", ran.err, re.MULTILINE)
        demo.interrupt()
        assert 130 == demo.end().code
    summary = json.loads((out / "summary.json").read_text())
    found = records(out / "results.jsonl")
    assert ("done", len(found)) == (summary["outcome"], summary["counters"]["discovered"])
    statuses = [str(record["status"]) for record in found if record["status"] is not None]
    assert {status: statuses.count(status) for status in set(statuses)} == summary["statuses"]
    assert summary["counters"]["filtered"] == sum(summary["filtered_by_rule"].values()) > 0
    assert f"200: {statuses.count('200')}" in ran.out
    for record in found:
        assert_shape(record, RECORD)


@pytest.mark.commands("schema", "completion")
def test_what_needs_no_server_answers_without_one() -> None:
    nowhere = ("--etcd", "127.0.0.1:1", "--redis", "redis://127.0.0.1:1/0")
    for what, fields in (("job", {"max_pages", "scope"}), ("result", set(RECORD))):
        ran = crawlctl("schema", what, *nowhere)
        assert 0 == ran.code, ran.err
        (properties,) = (
            definition["properties"]
            for definition in ran.json["$defs"].values()
            if fields <= set(definition.get("properties", ()))
        )
        assert all(properties[name].get("description") for name in fields)
    assert 2 == crawlctl("schema", "nothing").code
    for shell in ("bash", "zsh", "fish"):
        code = crawlctl("completion", shell, *nowhere)
        assert (0, True) == (code.code, "_CRAWLCTL_COMPLETE" in code.out)
    asked = subprocess.run(
        [sys.executable, "-m", "crawlctl"], capture_output=True, text=True, check=False,
        env=environment(
            _CRAWLCTL_COMPLETE="bash_complete", COMP_WORDS="crawlctl job pa", COMP_CWORD="2"
        ),
    )  # fmt: skip
    assert "plain,pause" in asked.stdout.splitlines()
