"""Dead letters as a user sees them: listed with reasons, put back, and nothing lost or twice."""

from __future__ import annotations

import json
from typing import Any

import pytest

from common.model.counters import is_balanced
from tests.support.cli import eventually
from tests.support.site import Page, Request, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show

OPTIONS = ("--allow-private", "--delay", "0.05", "--shards", "2", "--retries", "0")


class Weather:
    """Whether the site's broken part works again."""

    is_fine = False

    def page(self, _request: Request) -> Page:
        return Page(title="up", links=["/found-late"]) if self.is_fine else Page(status=503)

    def chain(self, request: Request) -> Page:
        """Lead to ever another page until the weather is fine: so long the job cannot finish."""
        before, _, number = request.path.rpartition("/")
        return Page(links=[] if self.is_fine else [f"{before}/{int(number) + 1}"])


def counters(up: Command, job: str) -> dict[str, Any]:
    found: dict[str, Any] = show(up, job)["counters"]
    assert is_balanced(found), found
    return found


@pytest.mark.commands("dead")
def test_dead_letters_are_listed_with_reasons_and_may_be_put_back_while_the_job_lives(
    up: Command,
) -> None:
    weather = Weather()
    pages = {"/": Page(links=["/down/1", "/down/2", "/chain/0"]), "/found-late": Page()}
    broken = {"/down/1": weather.page, "/down/2": weather.page}
    rules = {"/robots.txt": Page(status=404)}
    with Site({**pages, **broken, **rules}, otherwise=weather.chain) as site:
        job = up("submit", site.url("/"), *OPTIONS).out.strip()
        eventually(lambda: counters(up, job)["dead"] == 2, within_s=30, what="dead letters")
        assert 0 == up("job", "pause", job).code
        eventually(lambda: counters(up, job)["in_flight"] == 0, within_s=30, what="a quiet job")
        letters = up("dead", job, "--json").json
        assert sorted(one["url"] for one in letters) == [site.url("/down/1"), site.url("/down/2")]
        assert {(one["code"], one["status"], one["attempts"]) for one in letters} == {
            ("server_error", 503, 1)
        }
        assert "server_error" in up("dead", job).out
        weather.is_fine = True
        before = counters(up, job)
        retried = up("dead", job, "--retry", "--json")
        assert {"retried": 2} == retried.json, retried.err
        after = counters(up, job)
        assert (0, before["queued"] + 2) == (after["dead"], after["queued"])
        assert [] == up("dead", job, "--json").json
        assert 0 == up("job", "resume", job).code
        waited = up("job", "wait", job)
        assert 0 == waited.code, waited.err
        records = [json.loads(line) for line in up("export", job).out.splitlines()]
        crawled = set(site.paths()) - {*rules}
    done = counters(up, job)
    assert {*pages, *broken, "/chain/0"} <= crawled
    assert (len(crawled), 0) == (done["fetched"], done["dead"])
    assert len(records) == len({record["url"] for record in records}) == done["discovered"]
    refused = up("dead", job, "--retry")
    assert (4, True) == (refused.code, "finished" in refused.err)
    assert 1 == up("dead", "nothing").code
