"""``--store warc``: every record points to its response, whatever ended the crawl."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.support.cli import (
    assert_none_left,
    at_least_lines,
    crawlctl,
    environment,
    eventually,
    processes_of,
    records,
    running,
)
from tests.support.servers import EtcdServer, RedisServer
from tests.support.site import Page, Site, redirect
from tests.support.warcs import read_all
from tests.system.conftest import Command

COUNT = 150

PAGES: dict[str, Any] = {
    "/": Page(title="start", links=[f"/{number}" for number in range(COUNT)]),
    "/moved": redirect("/0"),
    "/packed": Page(title="packed", gzip=True),
    "/503": Page(status=503),
    "/gone": Page(drop=True),
    **{
        f"/{number}": Page(
            title=str(number), links=["/moved", "/missing", "/packed", "/gone", "/503"]
        )
        for number in range(COUNT)
    },
}
OPTIONS = ("--allow-private", "--retries", "0", "--per-host", "4", "--store", "warc")


def assert_archived(found: list[dict[str, Any]], folder: Path) -> None:
    """Every record with a response points to it; both readers verify every digest."""
    kept = read_all(folder)
    responses = {(one.file, one.offset, one.length): one for one in kept if one.kind == "response"}
    asked = {one.headers["WARC-Concurrent-To"]: one for one in kept if one.kind == "request"}
    for record in found:
        if record["status"] is None:
            assert record["warc"] is None, record
            continue
        place = record["warc"]
        response = responses[place["file"], place["offset"], place["length"]]
        assert record["final_url"] == response.url
        assert response.url == asked[response.headers["WARC-Record-ID"]].url
        assert record["sha256"] == response.sha256
        assert f" {record['status']} " in f"{response.status} "
    outcomes = Counter(record["outcome"] for record in found)
    assert {"fetched", "redirected", "dead"} == set(outcomes)
    assert any((one.url or "").endswith("/robots.txt") for one in kept)
    assert [] == list(folder.glob("*.open")), "all files were finished"


def servers(etcd: EtcdServer, redis: RedisServer, cluster: str) -> list[str]:
    return ["--etcd", etcd.endpoint, "--redis", redis.url, "--cluster", cluster]


def reasons(options: list[str]) -> list[str]:
    """Return what the nodes that are there give as reasons."""
    nodes = crawlctl("nodes", "--json", *options).json
    return [reason for node in nodes if node["state"] != "offline" for reason in node["reasons"]]


def waiting(options: list[str]) -> str | None:
    """Return why nobody works on the job, as it is shown."""
    shown: str | None = crawlctl("job", "show", "j", "--json", *options).json["waiting"]
    return shown


def test_a_crawl_killed_in_the_middle_points_to_whole_responses(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Site(PAGES) as site:
        command = ("crawl", site.url("/"), "-o", str(out), "--delay", "0.02", "--workers", "2")
        with running(*command, *OPTIONS) as crawl:
            eventually(at_least_lines(out / "results.jsonl", 30), within_s=60)
            for process in processes_of(out):
                if "start-worker" in process.cmdline():
                    process.kill()
            crawl.kill_group()
            crawl.end()
        assert_none_left(out)
        assert list((out / "warc").glob("*.open")), "files were being written"
        resumed = crawlctl(*command, *OPTIONS)
        assert 0 == resumed.code, resumed.err
        assert_none_left(out)
        found = records(out / "results.jsonl")
        assert COUNT + 6 == len(found)
        assert_archived(found, out / "warc")
        fresh = crawlctl(*command, *OPTIONS, "--max-pages", "1", "--fresh")
    assert 0 == fresh.code, fresh.err
    archived = [one.url for one in read_all(out / "warc") if one.kind == "response"]
    assert 2 == len(archived), "what the former crawl had kept is gone"


def test_up_keeps_responses_beside_its_data(up: Command, tmp_path: Path) -> None:
    with Site(PAGES) as site:
        submitted = up("submit", site.url("/"), *OPTIONS, "--delay", "0", "--shards", "4", "--wait")
        assert 0 == submitted.code, submitted.err
        exported = up("export", submitted.out.strip())
    found = [json.loads(line) for line in exported.out.splitlines()]
    assert COUNT + 6 == len(found)
    folder = tmp_path / "data" / "warc"
    eventually(lambda: not list(folder.glob("*.open")), within_s=60, what="files finished")
    assert_archived(found, folder)


def test_a_worker_without_a_folder_says_so_and_takes_no_task(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    options = servers(etcd_server, redis_server, cluster_name)
    folder = tmp_path / "warc"
    with Site(PAGES) as site, running("start-master", *options):
        with running("start-worker", "--id", "bare", *options) as bare:
            submitted = crawlctl(
                "submit", site.url("/"), *OPTIONS, "--id", "j", "--delay", "0", "--shards", "2",
                *options,
            )  # fmt: skip
            assert 0 == submitted.code, submitted.err
            # Before the worker has registered, the reason is that there is none.
            eventually(
                lambda: all(part in (waiting(options) or "") for part in ("bare", "--warc-dir")),
                within_s=60, what="the worker and what it lacks as the reason",
            )  # fmt: skip
            eventually(
                lambda: "--warc-dir" in crawlctl("why", "j", site.url("/"), *options).out,
                within_s=60, what="the same said of its seed",
            )  # fmt: skip
            locks = crawlctl("locks", "--json", *options).json
            assert [] == [lock for lock in locks if lock["kind"] == "task"]
            bare.process.send_signal(signal.SIGTERM)
            ended = bare.end()
            assert 0 == ended.code
        assert [] == site.paths()
        with running("start-worker", "--warc-dir", str(folder), *options) as able:
            waited = crawlctl("job", "wait", "j", *options)
            assert 0 == waited.code, waited.err
            exported = crawlctl("export", "j", *options)
            able.process.send_signal(signal.SIGTERM)
            assert 0 == able.end().code
    assert_archived([json.loads(line) for line in exported.out.splitlines()], folder)


SMALL_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
from crawlctl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_worker_whose_disk_is_full_gives_the_tasks_back_and_commits_nothing_torn(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    """Files may not grow beyond 30 kB: to the worker that is a disk that is full."""
    options = servers(etcd_server, redis_server, cluster_name)
    folder, log = tmp_path / "warc", tmp_path / "log"
    where = ("--id", "full", "--warc-dir", str(folder))
    with Site(PAGES) as site, running("start-master", *options):
        submitted = crawlctl(
            "submit", site.url("/"), *OPTIONS, "--id", "j", "--delay", "0", "--shards", "2",
            *options,
        )  # fmt: skip
        assert 0 == submitted.code, submitted.err
        with log.open("w") as file:
            full = subprocess.Popen(
                [sys.executable, "-c", SMALL_FILES, "start-worker", *where, *options],
                stdin=subprocess.DEVNULL, stderr=file, env=environment(),
            )  # fmt: skip
        try:
            (reason,) = eventually(lambda: reasons(options), within_s=60, what="a reason")
            assert "--warc-dir" in reason
            assert "File too large" in reason
            full.send_signal(signal.SIGTERM)
            assert 0 == full.wait(60), log.read_text()
        finally:
            full.kill()
            full.wait()
        with running("start-worker", "--warc-dir", str(folder), *options) as able:
            waited = crawlctl("job", "wait", "j", *options)
            assert 0 == waited.code, waited.err
            exported = crawlctl("export", "j", *options)
            able.process.send_signal(signal.SIGTERM)
            assert 0 == able.end().code
    found = [json.loads(line) for line in exported.out.splitlines()]
    assert COUNT + 6 == len(found)
    assert {"full"} < {record["worker"] for record in found}, "it did pages before"
    assert {"server_error", "connection_reset"} == {
        record["error"]["code"] for record in found if record["error"]
    }
    assert_archived(found, folder)


def test_a_folder_that_cannot_be_used_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran = crawlctl("start-worker", "--warc-dir", str(tmp_path / "file"))
    assert 2 == ran.code
    assert "--warc-dir" in ran.err
