"""Every response that was received is in the archive, as it was asked for and answered."""

from __future__ import annotations

import gzip
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from common.model.ids import JobId, NodeId
from common.model.job import JobSpec
from tests.support.fetching import at_once, code_of
from tests.support.site import Page, Request, Site, redirect
from tests.support.warcs import Record, read_all
from worker.fetch import Fetcher
from worker.fetched import Fetched
from worker.warc import Archive
from worker.warc_recorder import Recorder

BIG = os.urandom(300_000)


def bouncing(request: Request) -> Page:
    if "seen=1" in request.cookie:
        return Page(title="welcome back")
    return redirect("/bounce", headers=[("Set-Cookie", "seen=1")])


PAGES = {
    "/": Page(title="start", headers=[("X-Odd", "caf\xe9"), ("X-Two", "1"), ("x-two", "2")]),
    "/gzip": Page(title="packed", gzip=True),
    "/moved": redirect("/"),
    "/bounce": bouncing,
    "/big": Page(body=BIG, content_type="application/octet-stream"),
    "/packed-big": Page(body=BIG, gzip=True),
    "/503": Page(status=503),
    "/gone": Page(drop=True),
    "/slow": Page(delay_s=30),
}


class Archiving:
    """A fetcher whose responses are kept."""

    def __init__(self, folder: Path, **options: Any) -> None:
        spec = JobSpec(allow_private=True, store="warc", **options)
        self.folder = folder
        self._archive = Archive(folder, job=JobId("j"), node=NodeId("n"), facts={})
        self._fetcher = Fetcher(spec, connections=4, recorder=Recorder(self._archive))

    async def fetch(self, url: str, **options: Any) -> Fetched:
        return await self._fetcher.fetch(
            url, wait_before_hop=at_once, is_bounce=lambda target: target == url, **options
        )

    async def end(self) -> list[Record]:
        """Close, and return what is in the archive but for what each file begins with."""
        await self._fetcher.close()
        await self._archive.close()
        return [one for one in read_all(self.folder) if one.kind != "warcinfo"]


@pytest.fixture(scope="module")
def site() -> Any:
    with Site(PAGES) as one:
        yield one


@pytest_asyncio.fixture
async def archiving(tmp_path: Path) -> AsyncIterator[Archiving]:
    one = Archiving(tmp_path)
    yield one
    await one.end()


def unpacked(folder: Path) -> bytes:
    return b"".join(gzip.decompress(path.read_bytes()) for path in folder.glob("*.warc.gz"))


def of(fetched: Fetched, records: list[Record]) -> Record:
    """Return the response a fetch points to."""
    assert fetched.warc is not None
    (found,) = [
        one
        for one in records
        if (one.file, one.offset, one.length)
        == (fetched.warc.file, fetched.warc.offset, fetched.warc.length)
    ]
    assert ("response", fetched.final_url) == (found.kind, found.url)
    return found


@pytest.mark.parametrize("path", ["/", "/gzip", "/missing", "/big", "/packed-big", "/503"])
async def test_a_response_is_kept_with_the_body_that_was_judged(
    site: Site, archiving: Archiving, path: str
) -> None:
    fetched = await archiving.fetch(site.url(path))
    records = await archiving.end()
    kept = of(fetched, records)
    assert fetched.body == kept.body
    assert f" {fetched.status} " in f"{kept.status} "
    assert fetched.ip == kept.headers["WARC-IP-Address"]
    assert "WARC-Truncated" not in kept.headers
    assert ["response", "request"] == [one.kind for one in records]


async def test_the_head_is_as_it_was_sent(site: Site, archiving: Archiving) -> None:
    fetched = await archiving.fetch(site.url("/"))
    kept = of(fetched, await archiving.end())
    raw = unpacked(archiving.folder)
    assert b"\r\nX-Odd: caf\xe9\r\nX-Two: 1\r\nx-two: 2\r\n" in raw
    assert [str(len(fetched.body))] == kept.field("Content-Length")


async def test_a_coding_that_was_undone_is_told(site: Site, archiving: Archiving) -> None:
    fetched = await archiving.fetch(site.url("/gzip"))
    kept = of(fetched, await archiving.end())
    assert [] == kept.field("Content-Encoding")
    assert ["gzip"] == kept.field("X-Crawl-Content-Encoding")
    assert [str(len(fetched.body))] == kept.field("Content-Length")


async def test_the_request_is_what_the_server_saw(tmp_path: Path) -> None:
    seen: list[Request] = []

    def see(request: Request) -> Page:
        seen.append(request)
        return Page()

    with Site({"/p?q=1": see}) as site:
        archiving = Archiving(tmp_path, user_agent="archiver/1")
        await archiving.fetch(site.url("/p?q=1"))
        _, request = await archiving.end()
    assert seen[0].headers == {name.lower(): value for name, value in request.http}
    assert "GET /p?q=1 HTTP/1.1" == request.status


async def test_secrets_of_the_job_are_not_kept(site: Site, tmp_path: Path) -> None:
    archiving = Archiving(
        tmp_path, header=("Authorization: Bearer s3cret", "X-Key: s3cret"), cookie=("sid=s3cret",)
    )
    await archiving.fetch(site.url("/"), trusted=True)
    _, request = await archiving.end()
    assert ["***"] == request.field("Authorization") == request.field("X-Key")
    assert ["***"] == request.field("Cookie")


async def test_headers_of_plugins_are_sent_in_place_of_the_jobs_but_not_kept(
    tmp_path: Path,
) -> None:
    seen: list[Request] = []

    def see(request: Request) -> Page:
        seen.append(request)
        return Page()

    headers = {"x-key": "theirs", "X-Token": "s3cret"}
    with Site({"/": see}) as site:
        archiving = Archiving(tmp_path, header=("X-Key: ours", "X-Job: ours"))
        await archiving.fetch(site.url("/"), trusted=True, headers=headers)
        await archiving.fetch(site.url("/"), headers=headers)
        kept = [one for one in await archiving.end() if one.kind == "request"]
    names = ("x-key", "x-token", "x-job")
    sent = [tuple(request.headers.get(name) for name in names) for request in seen]
    assert [("theirs", "s3cret", "ours"), (None, None, None)] == sent
    hidden = [tuple(request.field(name) for name in names) for request in kept]
    assert [(["***"], ["***"], ["***"]), ([], [], [])] == hidden
    assert b"s3cret" not in unpacked(tmp_path)


async def test_redirects_and_every_hop_of_a_bounce_are_kept(
    site: Site, archiving: Archiving
) -> None:
    moved = await archiving.fetch(site.url("/moved"))
    bounced = await archiving.fetch(site.url("/bounce"))
    records = await archiving.end()
    assert ["/"] == of(moved, records).field("Location")
    assert bounced.body == of(bounced, records).body
    hops = [one for one in records if one.url == site.url("/bounce") and one.kind == "response"]
    assert 2 == len(hops)


async def test_what_was_refused_or_cut_is_kept_as_far_as_it_came(
    site: Site, tmp_path: Path
) -> None:
    archiving = Archiving(tmp_path, accept=("text/html",), max_body=100_000)
    refused = await archiving.fetch(site.url("/big"))
    large = await archiving.fetch(site.url("/packed-big"), any_type=True)
    cut = await archiving.fetch(site.url("/big"), any_type=True, max_body=1000, cut=True)
    records = await archiving.end()
    assert ("refused_type", "too_large", None) == (code_of(refused), code_of(large), code_of(cut))
    reasons = [of(one, records).headers["WARC-Truncated"] for one in (refused, large, cut)]
    assert ["unspecified", "length", "length"] == reasons
    assert BIG[:1000] == of(cut, records).body
    assert ["300000"] == of(cut, records).field("X-Crawl-Content-Length")


async def test_nothing_is_kept_where_nothing_was_received(site: Site, tmp_path: Path) -> None:
    archiving = Archiving(tmp_path, timeout=0.3)
    assert (await archiving.fetch(site.url("/gone"))).warc is None
    assert (await archiving.fetch(site.url("/slow"))).warc is None
    assert (await archiving.fetch("http://127.0.0.1:9/")).warc is None
    assert [] == await archiving.end()
