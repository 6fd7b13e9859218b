"""A small web site on loopback with known contents, for a first crawl without a network.

It is the same at every start: an index, sections, a few hundred pages that link to each other, and
one of each thing a crawler has to cope with (see ``expected``). Nothing but its two pages that
change per request (``/busy``, ``/welcome``) depends on who asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import Final

import structlog
from aiohttp import web

from crawlctl.show import quantity

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PAGES: Final = 300
"""Ordinary pages unless told otherwise."""

_SECTION: Final = 25
_PRIVATE: Final = ("/private/diary", "/private/keys", "/private/plans")
_OUTSIDE: Final = "http://elsewhere.invalid/"
_BUSY_TIMES: Final = 2
_TEXT: Final = """
frontier lease token shard worker master queue robot polite delay commit claim offer seed host depth
scope link page crawl retry fence watch lock term steady small known
"""

_log = structlog.get_logger()


def expected(pages: int = PAGES) -> dict[str, int]:
    """Return the counters of a crawl from ``/`` with default scope and robots.txt obeyed."""
    sections = len(_sections(pages))
    fetched = 1 + sections + pages + len(("/welcome", "/busy", "/missing"))
    redirected = len(("/moved",))
    denied = len(_PRIVATE)
    return {
        "discovered": fetched + redirected + denied,
        "queued": 0,
        "delayed": 0,
        "in_flight": 0,
        "fetched": fetched,
        "not_modified": 0,
        "redirected": redirected,
        "denied": denied,
        "failed": 0,
        "dead": 0,
        "dropped": 0,
        "filtered": len((_OUTSIDE,)),
    }


def build_app(*, pages: int = PAGES, crawl_delay_s: float | None = None) -> web.Application:
    """Return the site.

    Args:
        pages: Ordinary pages, besides the index, the sections and the special ones.
        crawl_delay_s: What robots.txt asks for, in seconds; None: nothing.
    """
    app = web.Application()
    fixed = {"/": _index(pages)}
    fixed |= {f"/section/{first}": _section(first, pages) for first in _sections(pages)}
    fixed |= {f"/page/{number}": _page(number, pages) for number in range(1, pages + 1)}
    fixed |= {path: _private(path) for path in _PRIVATE}
    app.add_routes([web.get(path, _always(text)) for path, text in fixed.items()])
    app.add_routes(
        [
            web.get("/robots.txt", _always(_robots(crawl_delay_s), content_type="text/plain")),
            web.get("/moved", _moved),
            web.get("/welcome", _welcome),
            web.get("/busy", _Busy().answer),
        ]
    )
    return app


async def serve(
    port: int,
    *,
    host: str = "127.0.0.1",
    pages: int = PAGES,
    crawl_delay_s: float | None = None,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve the site until cancelled.

    Args:
        port: Where to listen; 0 takes a free one.
        host: Loopback address to listen on.
        pages: Ordinary pages.
        crawl_delay_s: What robots.txt asks for.
        on_ready: Told the site's URL once it answers.

    Raises:
        OSError: the address cannot be listened on.
    """
    runner = web.AppRunner(build_app(pages=pages, crawl_delay_s=crawl_delay_s), access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        url = f"http://{shown}:{bound[1]}/"
        _log.info("demo_site.ready", url=url, pages=pages)
        if on_ready is not None:
            on_ready(url)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


class _Busy:
    """Answers 503 twice, then the page, and so on: a crawler that retries gets it."""

    def __init__(self) -> None:
        self._asked = count(1)

    async def answer(self, _request: web.Request) -> web.Response:
        if next(self._asked) % (_BUSY_TIMES + 1):
            return web.Response(status=503, text="busy", headers={"Retry-After": "0"})
        text = _html("Busy", "The third request is answered.", [])
        return web.Response(text=text, content_type="text/html")


async def _welcome(request: web.Request) -> web.Response:
    """Send visitors without cookie back to this same URL, with one."""
    if request.cookies.get("visited") == "yes":
        text = _html("Welcome", "The cookie came back.", ["/page/1"])
        return web.Response(text=text, content_type="text/html")
    response = web.Response(status=302, headers={"Location": "/welcome"})
    response.set_cookie("visited", "yes")
    return response


async def _moved(_request: web.Request) -> web.Response:
    return web.Response(status=301, headers={"Location": "/page/1"})


def _always(text: str, *, content_type: str = "text/html") -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type)

    return answer


def _robots(crawl_delay_s: float | None) -> str:
    lines = ["User-agent: *", "Disallow: /private/"]
    if crawl_delay_s is not None:
        lines.append(f"Crawl-delay: {crawl_delay_s:g}")
    return "\n".join(lines) + "\n"


def _sections(pages: int) -> range:
    return range(1, pages + 1, _SECTION)


def _index(pages: int) -> str:
    special = ["/welcome", "/moved", "/busy", "/missing", *_PRIVATE, _OUTSIDE]
    links = [f"/section/{first}" for first in _sections(pages)]
    return _html(
        "Demo site", f"{quantity(pages, 'page')}, linked to each other.", [*links, *special]
    )


def _section(first: int, pages: int) -> str:
    last = min(first + _SECTION - 1, pages)
    links = [f"/page/{number}" for number in range(first, last + 1)]
    return _html(f"Pages {first} to {last}", _prose(first), ["/", *links])


def _page(number: int, pages: int) -> str:
    near = (number - 1, number + 1, number * 2, number * 2 + 1, number * 7 % pages + 1)
    links = [f"/page/{other}" for other in dict.fromkeys(near) if 1 <= other <= pages]
    # A fragment and a relative path lead to pages already linked.
    return _html(f"Page {number}", _prose(number), ["../", *links, f"#part-{number}"])


def _private(path: str) -> str:
    return _html("Private", f"robots.txt disallows {path}; a polite crawler never sees this.", [])


def _prose(seed: int) -> str:
    words = _TEXT.split()
    chosen = (words[(seed * step + step * step) % len(words)] for step in range(1, 120))
    return " ".join(chosen).capitalize() + "."


def _html(title: str, text: str, links: Iterable[str]) -> str:
    items = "\n".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        f"<title>{title}</title></head>\n<body>\n<h1>{title}</h1>\n<p>{text}</p>\n<ul>\n{items}\n</ul>\n</body>\n</html>\n"
    )
