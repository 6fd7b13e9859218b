"""Every kind of answer a site gives ends as the right outcome, and the counters always add up."""

from __future__ import annotations

import json
from typing import Any

from common.model.counters import is_balanced
from tests.support.site import Page, Request, Site, redirect
from tests.system.conftest import Command

CRAWL_DELAY_S = 0.6
ROBOTS = f"User-agent: *\nDisallow: /private\nCrawl-delay: {CRAWL_DELAY_S}\n"


def flaky(request: Request) -> Page:
    """503 the first time, a page after that."""
    return Page(status=503) if request.nth == 1 else Page(title="up again", links=["/after"])


def bouncing(request: Request) -> Page:
    """Answers only to who comes back with the cookie."""
    if "seen=1" in request.cookie:
        return Page(title="welcome back")
    return redirect("/bounce", headers=[("Set-Cookie", "seen=1")])


PAGES = {
    "/robots.txt": Page(body=ROBOTS.encode(), content_type="text/plain"),
    "/": Page(
        title="start",
        links=[
            "/a", "/moved", "/missing", "/flaky", "/private/x", "/bounce", "/away", "/ever-503",
            "/private/y", "/nowhere", "http://127.0.0.2:9/out", "mailto:me@example.org", "/#top",
        ],
    ),
    "/a": Page(title="a", links=["/", "/missing", "/deep"]),
    "/deep": Page(title="deep"),
    "/moved": redirect("/target?x=1"),
    "/target?x=1": Page(title="target"),
    "/after": Page(title="after"),
    "/flaky": flaky,
    "/bounce": bouncing,
    "/away": redirect("http://127.0.0.2:9/elsewhere", status=302),
    "/ever-503": Page(status=503),
    "/nowhere": redirect("http://[bad", status=302),
}  # fmt: skip

EXPECTED = {
    "/": ("fetched", 200), "/a": ("fetched", 200), "/deep": ("fetched", 200),
    "/moved": ("redirected", 301), "/target?x=1": ("fetched", 200), "/missing": ("fetched", 404),
    "/flaky": ("fetched", 200), "/after": ("fetched", 200), "/private/x": ("denied", None),
    "/private/y": ("denied", None), "/bounce": ("fetched", 200), "/away": ("redirected", 302),
    "/ever-503": ("dead", 503), "/nowhere": ("failed", 302),
}  # fmt: skip


def show(up: Command, job: str) -> dict[str, Any]:
    ran = up("job", "show", job, "--json")
    assert 0 == ran.code, ran.err
    shown: dict[str, Any] = ran.json
    return shown


def test_each_answer_has_its_outcome_and_the_counters_always_add_up(up: Command) -> None:
    with Site(PAGES) as site:
        options = ["--allow-private", "--delay", "0.05", "--retries", "1", "--shards", "4"]
        submitted = up("submit", site.url("/"), *options)
        assert 0 == submitted.code, submitted.err
        job = submitted.out.strip()
        looks = []
        while not looks or looks[-1]["state"] in ("pending", "running"):
            looks.append(show(up, job))
        exported = up("export", job)
    assert [] == [look["counters"] for look in looks if not is_balanced(look["counters"])]
    during = [look for look in looks if 0 < look["counters"]["fetched"] < len(EXPECTED)]
    assert len(during) >= 2, "the counters were looked at while the crawl went on"
    assert "finished" == looks[-1]["state"]
    records = [json.loads(line) for line in exported.out.splitlines()]
    found = {
        record["url"].removeprefix(site.url("")): (record["outcome"], record["status"])
        for record in records
    }
    assert EXPECTED == found
    assert len(EXPECTED) == len(records)
    outcomes = [outcome for outcome, _ in EXPECTED.values()]
    counters = looks[-1]["counters"]
    for outcome in ("fetched", "redirected", "denied", "dead", "failed", "dropped"):
        assert outcomes.count(outcome) == counters[outcome], outcome
    assert len(EXPECTED) == counters["discovered"]
    by_path = {record["url"].removeprefix(site.url("")): record for record in records}
    assert site.url("/target?x=1") == by_path["/moved"]["location"]
    assert "Disallow: /private" == by_path["/private/x"]["rule"]
    assert "invalid_location" == by_path["/nowhere"]["error"]["code"]
    assert "server_error" == by_path["/ever-503"]["error"]["code"]
    assert (1, 2, 2) == (
        by_path["/a"]["attempt"], by_path["/flaky"]["attempt"], by_path["/ever-503"]["attempt"]
    )  # fmt: skip
    assert "/private/x" not in site.paths()
    assert site.min_gap() >= CRAWL_DELAY_S, "robots.txt asks for a longer delay than the job"
    assert 1 == site.max_concurrency()
