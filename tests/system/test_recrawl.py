"""``--recrawl`` as users see it: a job that goes on, tells of its visits, ends when closed."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.cli import eventually
from tests.support.site import Page, Request, Site
from tests.support.warcs import Record, read
from tests.system.conftest import Command
from tests.system.test_outcomes import show

TAG = [("ETag", '"1"')]


def same(request: Request) -> Page:
    if request.headers.get("if-none-match") == '"1"':
        return Page(status=304, body=b"", headers=TAG)
    return Page(title="same", links=["/other"], headers=TAG)


def test_pages_are_visited_again_until_the_job_is_closed(up: Command, tmp_path: Path) -> None:
    with Site({"/": same, "/other": Page()}) as site:
        options = ["--recrawl", "1s", "--recrawl-max", "1s", "--store", "warc"]
        submitted = up(
            "submit", site.url("/"), *options, "--allow-private", "--delay", "0", "--shards", "2"
        )
        assert 0 == submitted.code, submitted.err
        job = submitted.out.strip()

        def is_visited() -> bool:
            shown = show(up, job)
            assert ("running", True) == (shown["state"], shown["keep_open"])
            return bool(shown["recrawl"]["done"] >= 4)

        eventually(is_visited, within_s=60, what="visits again")
        text = up("job", "show", job).out
        assert f"{job}: running, kept open until 'crawlctl job close {job}'" in text
        assert re.search(r"waiting for a visit: [0-9]+ pages?, the next at", text)
        waited = up("job", "wait", job, "--timeout", "0")
        assert (1, True) == (
            waited.code,
            f"'crawlctl job close {job}' lets it finish" in waited.err,
        )
        assert 0 == up("job", "close", job).code
        waited = up("job", "wait", job)
        assert 0 == waited.code, waited.err
        shown = show(up, job)
        assert ("finished", None) == (shown["state"], shown["recrawl"]["next_visit_at"])
        assert 0 == shown["recrawl"]["waiting"]
        text = up("job", "show", job, "--profile").out
        assert ("nothing more is brought back" in text, "wait for a visit" in text) == (True, False)
        assert ("it is over" in text, "resume" in text, "kept open" in text) == (True, False, False)
        records = {
            record["url"]: record for record in map(json.loads, up("export", job).out.splitlines())
        }
        assert {site.url("/"), site.url("/other")} == set(records)
        why = up("why", job, site.url("/"), "--json").json
        assert "not visited again" in why["reason"]
        assert why["detail"]["recrawl"]["next_visit_at"] is None
        checked = up("doctor", "--json")
        assert 0 == checked.code, checked.out
    first = records[site.url("/")]
    assert ("not_modified", 304, "same") == (first["outcome"], first["status"], first["title"])
    archived = [one for path in tmp_path.rglob("*.warc.gz*") if path.suffix == ".gz"
                for one in read(path)]  # fmt: skip
    bodies = [one for one in archived if is_at(one, first["warc"])]
    assert [("response", site.url("/"))] == [(one.kind, one.url) for one in bodies]
    assert first["sha256"] == bodies[0].sha256, "where the body is, not the last answer"
    revisits = [one for one in archived if one.kind == "revisit"]
    assert revisits
    dates = {one.headers["WARC-Refers-To-Date"] for one in revisits}
    assert {bodies[0].headers["WARC-Date"]} == dates


def is_at(one: Record, place: dict[str, object]) -> bool:
    return (one.file, one.offset) == (place["file"], place["offset"])
