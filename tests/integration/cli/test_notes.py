"""What is said beside the answer of a command that starts a job or adds to one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.model.job import JobSpec
from tests.support.cli import Ran, crawlctl, eventually, running
from tests.support.results import JOB, WrittenJob
from tests.support.site import Page, Site

NAMED = ("--user-agent", "mybot/1.0 (+https://my.example/bot)")


ALONE = "nobody works on job "
"""What ``submit`` says as well where no worker is, as here."""


async def run(*arguments: str) -> Ran:
    return await asyncio.to_thread(crawlctl, *arguments)


def notes(ran: Ran) -> list[str]:
    return [line for line in ran.err.splitlines() if not line.startswith(ALONE)]


async def test_a_seed_without_scheme_is_shown_as_it_was_taken(
    job: WrittenJob, options: list[str], tmp_path: Path
) -> None:
    """A site of https alone was asked by http, and nothing said so."""
    seeds = tmp_path / "seeds"
    seeds.write_text("# of mine\nb.example\nhttps://c.example/\n//d.example/x\n")
    taken = "seed without scheme: http://a.example/x is taken"
    ran = await run("submit", "a.example/x", "--seeds", str(seeds), "--id", "n", *NAMED, *options)
    assert (0, "n\n") == (ran.code, ran.out)
    assert [f"{taken}, and http for 2 more seeds without scheme"] == [
        line.partition(";")[0] for line in notes(ran)
    ]
    lacking = "there is no master and no worker; start them with crawlctl start-master and "
    assert f"{ALONE}n yet: {lacking}crawlctl start-worker" in ran.err
    ran = await run("job", "add", JOB, "a.example/x", *options)
    assert taken in ran.err.splitlines()[0]
    assert "more" not in ran.err.splitlines()[0]
    for silent, is_told in (
        (await run("submit", "a.example/x", "-q", *NAMED, *options), False),
        (await run("submit", "HTTPS://a.example/x", *NAMED, *options), True),
        (await run("job", "add", JOB, "a.example/x", "-q", *options), False),
    ):
        assert (0, []) == (silent.code, notes(silent))
        assert silent.err.count(ALONE) == is_told
    assert job.spec.shards == 3


@pytest.mark.parametrize(
    ("node", "lacking"),
    [
        ("start-worker", "there is no master; start one with crawlctl start-master"),
        ("start-master", "there is no worker; start one with crawlctl start-worker"),
    ],
)
def test_what_a_new_job_lacks_is_named(options: list[str], node: str, lacking: str) -> None:
    with running(node, *options):
        eventually(lambda: crawlctl("nodes", "--json", *options).json, within_s=60, what=node)
        ran = crawlctl("submit", "http://a.example/", *NAMED, *options, "--id", "n")
    assert (0, "n\n") == (ran.code, ran.out)
    assert f"{ALONE}n yet: {lacking}" in ran.err.splitlines()


async def test_who_gives_no_name_is_asked_for_one(options: list[str]) -> None:
    """The default named an address that cannot exist: it sent the owners of sites nowhere."""
    assert JobSpec().user_agent == "crawlctl/0.1"
    ran = await run("submit", "http://a.example/", *options)
    assert 0 == ran.code, ran.err
    assert 1 == ran.err.count("--user-agent 'mybot/1.0 (+https://my.example/bot)'")
    for silent in (NAMED, ("-q",), ("--allow-private",)):
        ran = await run("submit", "http://a.example/", *silent, *options)
        assert (0, []) == (ran.code, notes(ran))
        assert ran.err.count(ALONE) == (silent != ("-q",))


async def test_a_crawl_says_once_what_was_taken_and_what_is_missing(tmp_path: Path) -> None:
    with Site({"/": Page()}) as site:
        out = str(tmp_path / "own")
        ran = await run("crawl", site.authority(), "-o", out, "--allow-private", "--workers", "1")
        assert 0 == ran.code, ran.err
        assert f"seed without scheme: {site.url('/')} is taken" in ran.err
        assert "--user-agent" not in ran.err
        assert {"crawlctl/0.1"} == {one.user_agent for one in site.requests}
    away = ("crawl", "http://a.invalid/", "-o", str(tmp_path / "away"), "--retries", "0")
    first = await run(*away, "--workers", "1")
    assert (1, 1) == (first.code, first.err.count("--user-agent"))
    again = await run(*away, "--workers", "1")
    assert (1, 0) == (again.code, again.err.count("--user-agent"))
