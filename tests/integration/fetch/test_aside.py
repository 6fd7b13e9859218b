"""Heavy pages are read in a process of its own, which may die at any moment."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import psutil
import pytest

from common.embedded.launch import child_environment
from common.web import sitemap
from common.web.html import HtmlParser
from tests.support.waiting import until_true
from worker.aside import Aside, UnreadableError
from worker.heavy import HeavyPages
from worker.reader import PART, PageRequest, SitemapRequest

URL = "http://h.test/"
FOLLOW = frozenset("a")
ENDLESS = b"".join(b"<div><a href=/%d>x</a>" % number for number in range(200_000))
"""Takes seconds to read."""
FLOOD = b"".join(b"<a href=/%d?%b>x</a>" % (number, b"x" * 500) for number in range(20_000))
"""Its answer is much longer than what a stream holds."""
LIMITED = """
import asyncio, resource
import psutil
from worker.aside import Aside
from worker.reader import SitemapRequest

async def main():
    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
    aside = Aside()
    found = await aside.sitemap(SitemapRequest(b"http://h.test/\\n", "http://h.test/s"))
    reader = psutil.Process(aside.pid)
    print(len(found.pages), *reader.rlimit(psutil.RLIMIT_AS), reader.rlimit(psutil.RLIMIT_CPU)[1])
    await aside.close()

asyncio.run(main())
"""
OWNER = """
import asyncio, sys, time
from worker.aside import Aside
from worker.reader import SitemapRequest

async def main():
    aside = Aside()
    await aside.sitemap(SitemapRequest(b"http://h.test/\\n", "http://h.test/s"))
    pid = aside.pid
    if "reading" in sys.argv:
        body = b"http://h.test/\\n" * 100_000
        asyncio.create_task(aside.sitemap(SitemapRequest(body, "http://h.test/s")))
        await asyncio.sleep(0.05)
    print(pid, flush=True)
    time.sleep(3600)

asyncio.run(main())
"""


def request(body: bytes) -> PageRequest:
    return PageRequest(body, URL, "text/html", FOLLOW, "crawlctl", with_simhash=True)


@asynccontextmanager
async def opened(limit_s: float = 60.0) -> AsyncIterator[Aside]:
    pages = HeavyPages()
    pages.aside = Aside(limit_s)
    async with aclosing(pages):
        yield pages.aside


def readers() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [one for one in children if "worker.reader" in one.cmdline()]


async def test_what_is_read_aside_is_what_would_be_read_here() -> None:
    count = 2 * PART + 1
    body = "<title>Ünïcode</title><meta name=robots content=noindex><link rel=canonical href=/c>"
    body += "".join(f'<a href="/{n}"{" rel=nofollow" * (n % 2)}>x</a>' for n in range(count))
    here = HtmlParser(agent="crawlctl", with_simhash=True)
    wanted = here.parse(body.encode(), url=URL, content_type="text/html", follow=FOLLOW)
    listed = "".join(f"http://h.test/{number}\n" for number in range(count)).encode()
    resolved = sitemap.resolved(sitemap.parse(listed), URL)
    async with opened() as aside:
        assert wanted == await aside.page(request(body.encode()))
        first = aside.pid
        assert resolved == await aside.sitemap(SitemapRequest(listed, URL))
        assert wanted == await aside.page(request(body.encode()))
        assert first == aside.pid
    assert count == len(wanted.links)
    assert count // 2 == len(wanted.nofollow)
    assert [] == readers()


async def test_what_takes_too_long_is_unreadable_and_its_process_ends() -> None:
    async with opened(limit_s=0.01) as aside:
        with pytest.raises(UnreadableError, match=r"longer than 0\.01 s"):
            await aside.page(request(ENDLESS))
        assert [] == readers()


@pytest.mark.parametrize("how", ["killed", "cancelled"])
async def test_the_next_page_is_read_when_one_was_left(how: str) -> None:
    async with opened() as aside:
        reading = asyncio.create_task(aside.page(request(ENDLESS)))
        await until_true(lambda: bool(readers()))
        (before,) = readers()
        if how == "killed":
            before.kill()
            with pytest.raises(UnreadableError, match="died"):
                await reading
        else:
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        page = await aside.page(request(b"<title>next</title>"))
        assert "next" == page.title
        assert before.pid not in [one.pid for one in readers()]


async def test_what_is_left_in_the_middle_of_its_answer_holds_up_nothing() -> None:
    async with opened() as aside:
        for _ in range(4):  # to meet the moment at which the stream is full
            reading = asyncio.create_task(aside.page(request(FLOOD)))
            await until_true(lambda: bool(readers()))
            (reader,) = readers()
            while not reader.io_counters().write_chars:  # noqa: ASYNC110 - there is no event of it
                await asyncio.sleep(0)
            for _ in range(5):
                time.sleep(0.01)  # noqa: ASYNC251 - so that there is always more to read
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0, reading.cancel)
            done, _ = await asyncio.wait([reading], timeout=20)
            assert done
            assert reading.cancelled()
            assert [] == readers()
        assert "next" == (await aside.page(request(b"<title>next</title>"))).title


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs the GNU C library")
async def test_a_reader_holds_no_more_for_the_largest_page_it_has_read() -> None:
    async with opened() as aside:
        await aside.page(request(b""))
        (reader,) = readers()
        before = reader.memory_info().rss
        await aside.page(request(ENDLESS))
        assert aside.pid == reader.pid
        await until_true(lambda: reader.memory_info().rss < before + 40_000_000, within_s=10)


async def test_a_reader_may_use_no_more_than_its_worker() -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LIMITED, stdout=PIPE, env=child_environment(os.environ)
    )
    said, _ = await owner.communicate()
    assert [b"1", b"%d" % 2**31, b"%d" % 2**31, b"-1"] == said.split()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_reader_leaves_signals_to_its_worker(number: int) -> None:
    async with opened() as aside:
        await aside.page(request(b""))
        reading = asyncio.create_task(aside.page(request(b"<title>x</title>" + ENDLESS)))
        await until_true(lambda: aside.pid is None)
        (reader,) = readers()
        assert reader.pid == os.getsid(reader.pid)  # no terminal's signal reaches it
        reader.send_signal(number)
        assert "x" == (await reading).title


async def test_a_reader_that_died_idle_is_started_again() -> None:
    async with opened() as aside:
        await aside.page(request(b""))
        assert aside.pid is not None
        os.kill(aside.pid, signal.SIGKILL)
        await until_true(lambda: not psutil.pid_exists(aside.pid or 0))
        assert "next" == (await aside.page(request(b"<title>next</title>"))).title


async def test_pages_are_read_one_after_the_other() -> None:
    async with opened() as aside:
        titles = [f"page {number}" for number in range(8)]
        pages = await asyncio.gather(
            *(aside.page(request(b"<title>%b</title>" % title.encode())) for title in titles)
        )
        assert titles == [page.title for page in pages]
        assert 1 == len(readers())


@pytest.mark.parametrize("state", ["idle", "reading"])
async def test_a_reader_ends_with_its_worker_however_that_ends(state: str) -> None:
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, state, stdout=PIPE, stderr=PIPE,
        env=child_environment(os.environ),
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stderr is not None
    reader = int(await owner.stdout.readline())
    assert psutil.pid_exists(reader)
    owner.kill()
    await owner.wait()
    await until_true(lambda: not psutil.pid_exists(reader))
    assert b"" == await owner.stderr.read()
