"""Plugins as users run them: what docs/plugins.md shows, and workers with and without one."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import common
from tests.support.cli import Ran, assert_none_left, crawlctl, eventually, records, running
from tests.support.servers import EtcdServer, RedisServer
from tests.support.site import Page, Site

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"
SHOP = "https://shop.example/"
OPTIONS = ("--allow-private", "--delay", "0")


def product(price: str) -> Page:
    offer = {"@type": "Product", "offers": {"price": price}}
    script = f'<script type="application/ld+json">{json.dumps(offer)}</script>'
    return Page(body=f"<title>p</title>{script}".encode())


CATALOGUE = {"products": [{"href": "/p/1"}, {"href": "p/2"}, {"href": "/calendar/1999"}]}
PAGES: dict[str, Any] = {
    "/": Page(links=["/calendar/2027", "/catalogue.json"]),
    "/catalogue.json": Page(body=json.dumps(CATALOGUE).encode(), content_type="application/json"),
    "/p/1": product("19.90"),
    "/p/2": product("5.00"),
}
EXTRA = {"/p/1": {"prices": {"prices": ["19.90"]}}, "/p/2": {"prices": {"prices": ["5.00"]}}}


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """The file of the example, as it stands in the docs."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    path = tmp_path / "shop.py"
    path.write_text(code)
    return str(path)


def shown(program: str) -> list[str]:
    """Return the arguments of a command in the docs."""
    (line,) = re.findall(rf"^crawlctl ({program} .*)$", DOCS.read_text(), re.MULTILINE)
    return str(line).split()


def assert_as_told(found: list[dict[str, Any]], site: Site) -> None:
    """The records are those of the example, and the calendar was left alone."""
    extra = {record["url"]: record["extra"] for record in found}
    assert {site.url(path): EXTRA.get(path) for path in PAGES} == extra
    assert set(site.paths()) == {*PAGES, "/robots.txt"}


def exported(ran: Ran) -> list[dict[str, Any]]:
    assert 0 == ran.code, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


@pytest.mark.commands("crawl")
@pytest.mark.usefixtures("shop")
def test_the_example_of_the_docs_crawls_a_shop(tmp_path: Path) -> None:
    def run(*arguments: str) -> Ran:
        packages = str(Path(common.__file__).parents[1])
        return crawlctl(*arguments, cwd=tmp_path, PYTHONPATH=packages)

    with Site(PAGES) as site:
        words = [site.url() if word == SHOP else word for word in shown("crawl")]
        done = run(*words, *OPTIONS, "--workers", "1")
        assert 0 == done.code, done.err
        assert_as_told(records(tmp_path / "out" / "results.jsonl"), site)
        # Without the plugin it is another crawl.
        other = run("crawl", site.url(), "-o", "out", *OPTIONS)
    assert (2, True) == (other.code, "--plugin" in other.err), other.err
    assert_none_left(tmp_path / "out")


@pytest.mark.commands("up")
@pytest.mark.usefixtures("shop")
def test_the_workers_of_up_have_what_jobs_name(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()

    def run(*arguments: str) -> Ran:
        packages = str(Path(common.__file__).parents[1])
        return crawlctl(*arguments, cwd=tmp_path, home=home, PYTHONPATH=packages)

    started = run(*shown("up"), "--workers", "1")
    assert 0 == started.code, started.err
    try:
        with Site(PAGES) as site:
            words = [site.url() if word == SHOP else word for word in shown("submit")]
            submitted = run(*words, *OPTIONS)
            assert 0 == submitted.code, submitted.err
            job = submitted.out.strip()
            assert_as_told(exported(run("export", job)), site)
            why = run("why", job, site.url("/calendar/2027"), "--json")
        table = run("export", job, "--format", "csv")
    finally:
        stopped = run("down")
        assert_none_left(tmp_path / "data")
    assert 0 == stopped.code, stopped.err
    assert "plugin prices refused it" in why.json["reason"], why
    assert ["prices"] == why.json["detail"]["plugins"]
    rows = list(csv.DictReader(io.StringIO(table.out, newline="")))
    cells = {row["url"].rpartition(site.authority())[2]: row["extra"] for row in rows}
    texts = {path: json.dumps(extra, separators=(",", ":")) for path, extra in EXTRA.items()}
    assert dict.fromkeys(PAGES, "") | texts == cells


@pytest.mark.commands("start-worker", "submit")
def test_a_job_waits_for_a_worker_that_has_its_plugin(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, shop: str
) -> None:
    options = ["--etcd", etcd_server.endpoint, "--redis", redis_server.url]
    options += ["--cluster", cluster_name]

    def waiting() -> str:
        return str(crawlctl("job", "show", "j", "--json", *options).json["waiting"])

    with Site(PAGES) as site, running("start-master", *options):
        with running("start-worker", "--id", "bare", *options) as bare:
            submitted = crawlctl(
                "submit", site.url(), *OPTIONS, "--id", "j", "--shards", "2",
                "--plugin", "prices", *options,
            )  # fmt: skip
            assert 0 == submitted.code, submitted.err
            assert "nobody works on job j yet: " in submitted.err
            lacking = "bare: no plugin 'prices'", "--plugin prices=MODULE:OBJECT"
            eventually(
                lambda: all(part in waiting() for part in lacking),
                within_s=60, what="the worker and what it lacks as the reason",
            )  # fmt: skip
            profile = crawlctl("job", "show", "j", "--profile", "--json", *options).json["profile"]
            assert ("workers", waiting()) == (profile["limit"], profile["reason"])
            bare.process.send_signal(signal.SIGTERM)
            assert 0 == bare.end().code
        assert [] == site.paths()
        given = ("--plugin", f"prices={shop}:Prices", "--processes", "2")
        with running("start-worker", *given, *options) as able:
            waited = crawlctl("job", "wait", "j", *options)
            assert 0 == waited.code, waited.err
            able.process.send_signal(signal.SIGTERM)
            assert 0 == able.end().code
        assert_as_told(exported(crawlctl("export", "j", *options)), site)


WAITS = """
import asyncio
import time

from crawlctl.plugins import Plugin, Request


class Waits(Plugin):
    async def prepare(self, request: Request) -> None:
        if request.url.endswith("/blocks"):
            time.sleep(1.2)
        if request.url.endswith("/stays"):
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
"""


@pytest.mark.commands("start-worker", "why")
def test_a_hook_that_never_ends_keeps_no_worker_and_one_that_blocks_is_named(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    options = ["--etcd", etcd_server.endpoint, "--redis", redis_server.url]
    options += ["--cluster", cluster_name]
    (tmp_path / "waits.py").write_text(WAITS)
    plugin = ("--plugin", f"waits={tmp_path / 'waits.py'}:Waits")
    pages = {"/": Page(links=["/stays", "/blocks"]), "/blocks": Page(), "/stays": Page()}
    with (
        Site(pages) as site,
        running("start-master", *options),
        running("start-worker", *plugin, *options) as worker,
    ):
        asked = ("--plugin", "waits", "--id", "j", "--shards", "1", "--wait")
        submitted = crawlctl("submit", site.url(), *OPTIONS, *asked, *options)
        assert 0 == submitted.code, submitted.err
        stays = crawlctl("why", "j", site.url("/stays"), "--json", *options).json
        assert "plugin waits, prepare: TimeoutError" in stays["reason"]
        worker.process.send_signal(signal.SIGTERM)
        ended = worker.end()
    assert 0 == ended.code, ended.err
    blocked = [line for line in ended.err.splitlines() if "plugin.blocked_the_worker" in line]
    assert {"hook=prepare", "plugin=waits"} == set(re.findall(r"(?:hook|plugin)=\w+", blocked[0]))
    assert "node.left_behind" in ended.err
    assert "plugin waits, prepare" in ended.err.partition("node.left_behind")[2]


ENDS = """
import os

from crawlctl.plugins import Plugin, Response


class Ends(Plugin):
    def enrich(self, response: Response) -> None:
        if response.url.endswith("/poison"):
            os._exit(9)
"""


@pytest.mark.commands("start-worker", "dead")
def test_a_page_that_ends_its_workers_dies_alone(
    etcd_server: EtcdServer, redis_server: RedisServer, cluster_name: str, tmp_path: Path
) -> None:
    """All others were in flight beside it whenever a worker ended, and are fetched all the same."""
    options = ["--etcd", etcd_server.endpoint, "--redis", redis_server.url]
    options += ["--cluster", cluster_name]
    (tmp_path / "ends.py").write_text(ENDS)
    asked = ("--plugin", "ends", "--id", "j", "--shards", "2", "--per-host", "99", "--wait")
    asked += ("--timeout", "5")  # what a dead worker asked for is waited for as long
    innocent = [f"/p{number}" for number in range(20)]
    pages = dict.fromkeys(innocent, Page(delay_s=1.0)) | {
        "/": Page(links=["/poison", *innocent]), "/poison": Page(delay_s=0.3),
    }  # fmt: skip
    given = ("--plugin", f"ends={tmp_path / 'ends.py'}:Ends", "--lease-ttl", "2")
    with (
        Site(pages) as site,
        running("start-master", *options, "--lease-ttl", "2"),
        running("start-worker", *given, "--processes", "2", *options) as workers,
    ):
        submitted = crawlctl("submit", site.url(), *OPTIONS, *asked, *options)
        assert 0 == submitted.code, submitted.err
        why = crawlctl("why", "j", site.url("/poison"), "--json", *options).json
        (letter,) = crawlctl("dead", "j", "--json", *options).json
        found = exported(crawlctl("export", "j", *options))
        workers.process.send_signal(signal.SIGTERM)
        assert 0 == workers.end().code
    outcomes = {record["url"]: record["outcome"] for record in found}
    assert {site.url(path): "fetched" for path in pages} | {site.url("/poison"): "dead"} == outcomes
    assert ("owners_lost", site.url("/poison")) == (letter["code"], letter["url"])
    assert "dead after try 1: owners_lost: 5 workers ended with it in flight" in why["reason"]
    log = site.requests
    (*_, last) = [entry for entry in log if entry.path == "/poison"]
    beside = [one for one in log if one.start < last.end and last.start < one.end]
    assert [last] == beside
    assert 5 == site.paths().count("/poison")
