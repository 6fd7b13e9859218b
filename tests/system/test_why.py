"""``why`` gives the right answer for each state a URL can be in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cli import eventually
from tests.support.site import Page, Site
from tests.system.conftest import Command
from tests.system.test_outcomes import show

FIRST = {
    "/robots.txt": Page(body=b"User-agent: *\nDisallow: /private\n", content_type="text/plain"),
    "/": Page(links=["/private/x", "/down", "/a.pdf", "http://127.0.0.9:1/out", "/moved", "/gone"]),
    "/down": Page(status=503),
    "/moved": Page(status=301, headers=[("Location", "/")]),
}
SECOND = {"/": Page(links=["/next"], delay_s=90), "/next": Page()}


@pytest.mark.commands("why")
def test_why_answers_for_each_state(up: Command) -> None:
    with Site([FIRST, SECOND], addresses=["127.0.0.1", "127.0.0.2"]) as site:
        slow = site.url("/", host=1)
        options = ["--allow-private", "--delay", "0.02", "--shards", "2", "--deny", r"\.pdf$"]
        options += ["--timeout", "120"]
        job = up("submit", site.url("/"), slow, site.url("/next", host=1), *options).out.strip()

        def why(url: str) -> dict[str, Any]:
            ran = up("why", job, url, "--json")
            assert 0 == ran.code, ran.err
            found: dict[str, Any] = ran.json
            assert {"url", "canonical", "state", "since", "reason", "detail"} == set(found)
            return found

        def is_settled() -> bool:
            counters = show(up, job)["counters"]
            return bool(counters["fetched"] >= 2 and counters["delayed"] == 1)

        eventually(is_settled, within_s=30, what="everything but the slow page")
        flying = why(slow)
        assert "in_flight" == flying["state"]
        assert flying["detail"]["owner"] in flying["reason"]
        assert flying["since"].endswith("Z")
        queued = why(site.url("/next", host=1))
        assert ("queued", 0) == (queued["state"], queued["detail"]["before"])
        assert "under way" in queued["reason"]
        delayed = why(site.url("/down"))
        assert "delayed" == delayed["state"]
        assert delayed["detail"]["until"] in delayed["reason"]
        finished = why(site.url("/") + "#part")
        assert ("finished", site.url("/")) == (finished["state"], finished["canonical"])
        assert ("fetched", 200) == (finished["detail"]["outcome"], finished["detail"]["status"])
        assert finished["since"] == finished["detail"]["fetched_at"]
        assert "redirected to " + site.url("/") == why(site.url("/moved"))["reason"]
        denied = why(site.url("/private/x"))
        assert ("denied", False) == (denied["state"], "fetched_at" in denied["detail"])
        assert "Disallow: /private" in denied["reason"]
        by_rule = why(site.url("/a.pdf"))
        assert ("filtered", r"deny: \.pdf$") == (by_rule["state"], by_rule["reason"])
        by_scope = why("http://127.0.0.9:1/out")
        assert ("filtered", True) == (by_scope["state"], "scope host" in by_scope["reason"])
        assert "unknown" == why(site.url("/nobody-links-here"))["state"]
        refused = {r"deny: \.pdf$": 1, "scope: host": 1}
        assert refused == show(up, job)["filtered_by_rule"]
        table = up("job", "show", job).out
        assert all(rule in table for rule in ("LINKS REFUSED BY", *refused))
        assert r'deny=["\\.pdf$"]' in table
        no_url = why("ftp://example.org/")
        assert ("filtered", None) == (no_url["state"], no_url["canonical"])
        shown = up("why", job, site.url("/private/x"))
        assert "denied since" in shown.out
        assert 0 == up("job", "pause", job).code
        assert "the job is paused" in why(site.url("/next", host=1))["reason"]
        assert 1 == up("why", "nothing", slow).code


def test_why_names_the_budget_that_a_url_was_over(up: Command) -> None:
    with Site({"/": Page(links=["/a", "/b"])}) as site:
        options = ["--allow-private", "--delay", "0", "--max-pages-per-host", "1", "--wait"]
        job = up("submit", site.url("/"), *options).out.strip()
        answer = up("why", job, site.url("/a"), "--json").json
        assert "over_budget" == answer["state"]
        assert "fetched_at" not in answer["detail"]  # it was never asked for
        assert "--max-pages-per-host" in answer["reason"]
        depth = ["--allow-private", "--delay", "0", "--max-depth", "0", "--wait"]
        seeds_only = up("submit", site.url("/"), *depth).out.strip()
        assert "max_depth 0" in up("why", seeds_only, site.url("/a"), "--json").json["reason"]


@pytest.mark.commands("why")
def test_why_tells_how_a_url_ended_and_which_limit_it_met(up: Command) -> None:
    pages = {
        "/": Page(links=["/down", "/big", "/a"]),
        "/down": Page(status=503),
        "/big": Page(body=b"x" * 5000),
        "/a": Page(),
    }
    options = ("--allow-private", "--delay", "0", "--shards", "1", "--retries", "0")

    def why(job: str, path: str) -> tuple[str, str, dict[str, Any]]:
        ran = up("why", job, site.url(path), "--json")
        assert 0 == ran.code, ran.err
        return ran.json["state"], ran.json["reason"], ran.json["detail"]

    with Site(pages) as site:
        start = site.url("/")
        limits = ("--max-body", "2000", "--allow", "/(down|big)?$")
        assert 0 == up("submit", start, *options, *limits, "--id", "ended", "--wait").code
        state, reason, detail = why("ended", "/down")
        assert ("finished", "dead") == (state, detail["outcome"])
        assert reason.startswith("dead after try 1: server_error: ")
        state, reason, detail = why("ended", "/big")
        assert ("finished", "failed") == (state, detail["outcome"])
        assert reason.startswith("failed after try 1: too_large: ")
        state, reason, detail = why("ended", "/a")
        assert ("filtered", True) == (state, reason.startswith("allow"))
        budget = ("--max-pages", "1", "--id", "budget", "--wait")
        assert 0 == up("submit", start, *options, *budget).code
        state, reason, detail = why("budget", "/a")
        assert ("over_budget", True, "dropped") == (
            state, reason.endswith("its --max-pages"), detail["outcome"],
        )  # fmt: skip
        slow = ("--delay", "30", "--robots", "ignore", "--id", "cancelled")
        assert 0 == up("submit", start, *options, *slow).code
        eventually(lambda: show(up, "cancelled")["counters"]["queued"] == 3, within_s=60)
        state, reason, detail = why("cancelled", "/a")
        assert ("queued", True) == (state, "may start at" in reason)
        assert detail["host_ready_at"] in reason
        assert 0 == up("job", "cancel", "cancelled").code
        eventually(lambda: show(up, "cancelled")["counters"]["dropped"] == 3, within_s=60)
        state, reason, detail = why("cancelled", "/a")
        assert ("finished", "dropped: the job was cancelled") == (state, reason)
