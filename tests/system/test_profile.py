"""What limits a job is said by ``job show --profile``, and a job at full speed keeps its limits."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.support.cli import crawlctl, eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command

LASTS_S = 0.02
"""From a request to its answer: what ends earlier than that after its start cannot have."""
PAGES = {"/": Page(links=[f"/{n}" for n in range(150)])} | {
    f"/{n}": Page(links=[f"/{(n + step) % 150}" for step in (1, 7, 31)], delay_s=LASTS_S)
    for n in range(150)
}


def test_a_polite_job_is_limited_by_politeness(up: Command) -> None:
    with Site(PAGES) as site:
        job = up("submit", site.url("/"), "--allow-private", "--delay", "8").out.strip()

        def profile() -> dict[str, object]:
            found: dict[str, object] = up("job", "show", job, "--profile", "--json").json["profile"]
            return found

        found = eventually(
            lambda: one if (one := profile())["limit"] == "politeness" else None,
            within_s=60,
            what="a host that waits for its delay",
        )
        assert {"due": 0, "waiting": 1, "busy": 0} == found["hosts"]
        shown = up("job", "show", job, "--profile").out
        assert "limited by " in shown
        assert "PAGES IN EACH STAGE" in shown
        up("job", "cancel", job)
        assert "the job is cancelled" in up("job", "show", job, "--profile").out


def test_at_full_speed_a_host_never_has_more_requests_than_it_may(tmp_path: Path) -> None:
    """A slot is given back before its page is committed, but not before its response has ended."""
    with Site(PAGES) as site:
        options = ("--allow-private", "--delay", "0", "--per-host", "3", "--workers", "1")
        ran = crawlctl("crawl", site.url("/"), "-o", str(tmp_path / "out"), *options)
        assert 0 == ran.code, ran.err
        asked = [one for one in site.requests if one.path != "/robots.txt"]
    assert len(PAGES) == len(asked)
    starts = [one.start for one in asked if one.path != "/"]
    changes = [(at, 1) for at in starts] + [(at + LASTS_S, -1) for at in starts]
    at_once = itertools.accumulate(change for _, change in sorted(changes))
    assert max(at_once) <= 3
