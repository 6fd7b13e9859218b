"""What limits a job is said by ``job show --profile``."""

from __future__ import annotations

from tests.support.cli import eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command

PAGES = {"/": Page(links=[f"/{n}" for n in range(50)])} | {f"/{n}": Page() for n in range(50)}


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
