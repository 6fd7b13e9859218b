"""``job hosts`` and ``job host`` on a running crawl, judged by the sites' own log."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.cli import eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show

COUNT = 160
PAGES = {"/": Page(links=[f"/{n}" for n in range(COUNT)])} | {f"/{n}": Page() for n in range(COUNT)}
OPTIONS = ("--allow-private", "--delay", "0.25", "--shards", "2")


def starts(site: Site, host: int) -> list[float]:
    return sorted(entry.start for entry in site.requests if entry.host == host)


@pytest.mark.commands("job hosts", "job host")
def test_a_host_is_slowed_down_blocked_and_let_go_while_the_crawl_goes_on(up: Command) -> None:
    with Site(PAGES, addresses=["127.0.0.1", "127.0.0.2"]) as site:
        job = up("submit", site.url("/"), site.url("/", host=1), *OPTIONS).out.strip()
        first, second = (site.url("", host=host) for host in range(2))

        def hosts() -> dict[str, dict[str, Any]]:
            return {row["host"]: row for row in up("job", "hosts", job, "--json").json}

        eventually(lambda: len(hosts()) == 2, within_s=30, what="both hosts")
        assert 0 == up("job", "host", job, second, "--block").code
        slowed = up("job", "host", job, site.authority(0), "--delay", "1.5")
        assert 0 == slowed.code, slowed.err
        # A request that was claimed before may still go out; then nothing does.
        eventually(lambda: hosts()[second]["in_flight"] == 0, within_s=60, what="a quiet host")
        before, slow_from = len(starts(site, 1)), len(starts(site, 0)) + 1
        eventually(lambda: len(starts(site, 0)) >= slow_from + 3, within_s=30, what="slow pages")
        assert before == len(starts(site, 1)), "a blocked host was asked"
        slow = starts(site, 0)[slow_from:]
        gaps = [later - earlier for earlier, later in itertools.pairwise(slow)]
        assert min(gaps) >= 1.5
        shown = hosts()
        assert (True, None) == (shown[second]["blocked"], shown[second]["next_at"])
        assert (1.5, False) == (shown[first]["delay"], shown[first]["blocked"])
        assert shown[second]["queued"] > 0
        why = up("why", job, site.url(f"/{COUNT - 1}", host=1), "--json").json
        assert ("queued", True) == (why["state"], "--unblock" in why["reason"])
        assert second in up("job", "hosts", job, "--limit", "1").out
        assert 0 == up("job", "host", job, first, "--delay", "0").code
        assert 0 == up("job", "host", job, second, "--delay", "0").code
        assert 0 == up("job", "host", job, second, "--unblock").code
        waited = up("job", "wait", job)
        assert 0 == waited.code, waited.err
        assert 4 == up("job", "host", job, second, "--block").code
    assert 2 * len(PAGES) == show(up, job)["counters"]["fetched"]


def test_a_setting_that_makes_no_sense_is_wrong_use(up: Command) -> None:
    for arguments in (["h.example"], ["h.example", "--block", "--unblock"],
                      ["h.example", "--delay", "-1"], ["h.example/path", "--block"]):  # fmt: skip
        ran = up("job", "host", "j", *arguments)
        assert 2 == ran.code, ran.err
    assert 1 == up("job", "host", "j", "h.example", "--block").code
    assert 1 == up("job", "hosts", "j").code
