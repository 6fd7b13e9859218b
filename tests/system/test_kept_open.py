"""A job kept open takes seeds until it is closed; a spec file is as good as options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli import eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show

PAGES = {"/": Page(links=["/a"]), "/a": Page(), "/late": Page(links=["/later"]), "/later": Page()}


@pytest.mark.commands("submit", "job add", "job close")
def test_a_job_kept_open_takes_more_seeds_and_ends_when_closed(up: Command, tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text("allow_private = true\ndelay = 0.05\nshards = 4\n")
    with Site(PAGES, addresses=["127.0.0.1", "127.0.0.2"]) as site:
        submitted = up("submit", site.url("/"), "--spec", str(spec), "--keep-open", "--shards", "2")
        assert 0 == submitted.code, submitted.err
        job = submitted.out.strip()

        def is_drained(pages: int) -> bool:
            shown = show(up, job)
            assert "running" == shown["state"]
            return bool(shown["counters"]["fetched"] == pages == shown["counters"]["discovered"])

        eventually(lambda: is_drained(2), within_s=30, what="an empty frontier")
        assert 2 == len(show(up, job)["tasks"]), "the option wins over the file"
        text = up("job", "show", job, "--profile").out
        assert f"running, kept open until 'crawlctl job close {job}'" in text
        assert "to change that: add seeds" in text
        # Another host: it joins the scope, so that links on it are followed.
        added = up("job", "add", job, site.url("/late", host=1), site.url("/"))
        assert 0 == added.code, added.err
        eventually(lambda: is_drained(4), within_s=30, what="the added seed to be crawled")
        assert 3 == show(up, job)["spec"]["seeds"]
        closed = up("job", "close", job)
        assert (0, True) == (closed.code, "will finish once nothing is left" in closed.err)
        assert 0 == up("job", "wait", job).code
        again = up("job", "add", job, site.url("/late", host=1))
        assert (4, True) == (again.code, "finished" in again.err)
        assert 4 == up("job", "close", job).code
        assert 2 == up("job", "add", job).code, "no seed"
        other = up("submit", site.url("/"), "--spec", str(spec), "--keep-open").out.strip()
        cancelled = up("job", "cancel", other)
        assert (0, f"job {other} is cancelled\n") == (cancelled.code, cancelled.err)
    records = [json.loads(line) for line in up("export", job).out.splitlines()]
    expected = {site.url("/"), site.url("/a")}
    expected |= {site.url("/late", host=1), site.url("/later", host=1)}
    assert sorted(expected) == sorted(record["url"] for record in records)
