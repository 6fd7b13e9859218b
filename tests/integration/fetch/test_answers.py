"""What the fetcher makes of well-formed answers, and what it sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from common.model.errors import UsageError
from common.model.job import JobSpec
from tests.support.fetching import Fetching, code_of
from tests.support.rawserver import Exchange, RawServer, Reply, Script, page
from worker.fetch import MAX_HOPS, Fetcher

HTML = b"Content-Type: text/html; charset=utf-8"


def moved(target: bytes, *headers: bytes, status: str = "302 Found") -> Reply:
    return Reply(page(b"", status=status, headers=(b"Location: " + target, *headers)))


async def test_page_is_read_with_its_facts(fetch: Fetching) -> None:
    reply = Reply(page(b"<title>hi</title>", headers=(HTML, b"X-A: 1", b"X-A: 2")))
    async with RawServer({"/": reply}) as server:
        fetched = await fetch(server.url("/"))

    assert fetched.status == 200
    assert fetched.reason == "OK"
    assert fetched.body == b"<title>hi</title>"
    assert fetched.content_type == "text/html; charset=utf-8"
    assert fetched.url == fetched.final_url == server.url("/")
    assert fetched.ip == "127.0.0.1"
    assert fetched.error is None
    assert fetched.location is None
    assert not fetched.truncated
    assert fetched.headers is not None
    assert fetched.headers["x-a"] == "1"
    assert [value for name, value in fetched.headers.items() if name == "X-A"] == ["1", "2"]
    assert fetched.started_at <= fetched.ended_at
    assert fetched.elapsed_ms >= 0


@pytest.mark.parametrize(
    "status", ["404 Not Found", "410 Gone", "500 Oops", "503 Busy", "429 Slow", "999 No"]
)
async def test_error_statuses_are_answers_with_a_body(fetch: Fetching, status: str) -> None:
    async with RawServer({"/": Reply(page(b"sorry", status=status))}) as server:
        fetched = await fetch(server.url("/"))

    assert fetched.status == int(status[:3])
    assert fetched.body == b"sorry"
    assert fetched.error is None


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
async def test_redirect_ends_the_fetch_with_its_target(fetch: Fetching, status: str) -> None:
    reply = Reply(page(b"moved", status=status, headers=(b"Location: /b?x#part",)))
    async with RawServer({"/a": reply}) as server:
        fetched = await fetch(server.url("/a"))

        assert fetched.status == int(status[:3])
        assert fetched.location == server.url("/b?x#part")
        assert fetched.error is None
        assert [request.target for request in server.requests] == ["/a"]


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "300 Choices", "304 Same"])
async def test_location_of_other_statuses_is_no_redirect(fetch: Fetching, status: str) -> None:
    async with RawServer({"/a": moved(b"/b", status=status)}) as server:
        fetched = await fetch(server.url("/a"))

    assert fetched.status == int(status[:3])
    assert fetched.location is None


@pytest.mark.parametrize("field", [(), (b"Location:",), (b"Location:   ",)])
async def test_redirect_without_target_is_a_plain_answer(
    fetch: Fetching, field: tuple[bytes, ...]
) -> None:
    async with RawServer({"/a": Reply(page(b"x", status="302 F", headers=field))}) as server:
        fetched = await fetch(server.url("/a"))

    assert (fetched.status, fetched.location, fetched.body) == (302, None, b"x")
    assert fetched.error is None


async def test_unreadable_location_is_named(fetch: Fetching) -> None:
    async with RawServer({"/a": moved(b"http://[oops")}) as server:
        fetched = await fetch(server.url("/a"))

    assert fetched.status == 302
    assert fetched.location is None
    assert code_of(fetched) == "invalid_location"


@pytest.mark.parametrize(
    ("sent", "target"),
    [
        (b"/fa/\xd8\xa7\xd8\xb9", "/fa/%D8%A7%D8%B9"),  # H04: raw bytes, UTF-8 here
        (b"/caf\xe9", "/caf%E9"),  # and Latin-1 here: as they are
        (b"/A_%26_B", "/A_%26_B"),  # H05: not decoded to &
        (b"/a%2fb?q=%3D", "/a%2fb?q=%3D"),
        (b"?page=2", "/dir/a?page=2"),
        (b"../up", "/up"),
        (b"/with space", "/with%20space"),
    ],
)
async def test_location_bytes_are_kept(fetch: Fetching, sent: bytes, target: str) -> None:
    async with RawServer({"/dir/a": moved(sent)}) as server:
        fetched = await fetch(server.url("/dir/a"))

    assert fetched.location == server.url(target)


@pytest.mark.parametrize(
    ("sent", "target"),
    [
        (b"//other.test/x", "http://other.test/x"),
        (b"HTTPS://B\xc3\xbccher.test/", "https://xn--bcher-kva.test/"),
        (b"mailto:someone@b.test", "mailto:someone@b.test"),
    ],
)
async def test_location_may_lead_elsewhere(fetch: Fetching, sent: bytes, target: str) -> None:
    async with RawServer({"/a": moved(sent)}) as server:
        fetched = await fetch(server.url("/a"))

    assert fetched.location == target


def bouncing(accept: Callable[[str], bool]) -> Script:
    async def script(exchange: Exchange) -> Reply:
        if accept(exchange.request.header("Cookie") or ""):
            return Reply(page(b"in"))
        target = exchange.request.target.encode()
        return moved(target, b"Set-Cookie: s=1")

    return script


async def test_cookie_bounce_is_followed_inside_the_fetch(fetch: Fetching) -> None:
    """H01: /a sends the visitor to /a with a cookie; it ends as the page, fetched once."""
    waits: list[float] = []

    async def wait(ended_at: float) -> bool:
        waits.append(ended_at)
        return True

    async with RawServer({"/a": bouncing(lambda cookie: cookie == "s=1")}) as server:
        fetched = await fetch(server.url("/a"), wait_before_hop=wait)

        assert (fetched.status, fetched.body, fetched.hops) == (200, b"in", 1)
        assert len(server.requests) == 2
    assert len(waits) == 1
    assert waits[0] <= fetched.started_at


async def test_bounce_to_an_equal_url_asks_the_spelling_given(fetch: Fetching) -> None:
    """H01: the same page with its query keys in another order."""
    async with RawServer({"/a?x=1&y=2": moved(b"/a?y=2&x=1#f")}) as server:
        server.scripts |= {"/a?y=2&x=1": Reply(page(b"in"))}
        fetched = await fetch(server.url("/a?x=1&y=2"), is_bounce=lambda _: True)

    assert fetched.status == 200
    assert fetched.url == server.url("/a?x=1&y=2")
    assert fetched.final_url == server.url("/a?y=2&x=1")


async def test_endless_bounce_is_cut(fetch: Fetching) -> None:
    async with RawServer({"/a": bouncing(lambda _: False)}) as server:
        fetched = await fetch(server.url("/a"))

        assert code_of(fetched) == "too_many_redirects"
        assert fetched.status == 302
        assert len(server.requests) == MAX_HOPS + 1


async def test_hop_that_is_refused_abandons_the_fetch(fetch: Fetching) -> None:
    async def never(_ended_at: float) -> bool:
        return False

    async with RawServer({"/a": bouncing(lambda _: False)}) as server:
        fetched = await fetch(server.url("/a"), wait_before_hop=never)

        assert fetched.abandoned
        assert fetched.error is None
        assert len(server.requests) == 1


async def test_cookie_set_by_a_redirect_is_sent_to_its_target(fetch: Fetching) -> None:
    """H29: the new value, not the one from before."""

    async def target(exchange: Exchange) -> Reply:
        is_new = exchange.request.header("Cookie") == "k=2"
        return Reply(page(b"in")) if is_new else moved(b"/r")

    scripts: dict[str, Script] = {
        "/": Reply(page(headers=(b"Set-Cookie: k=1",))),
        "/r": moved(b"/t", b"Set-Cookie: k=2"),
        "/t": target,
    }
    async with RawServer(scripts) as server:
        await fetch(server.url("/"))
        first = await fetch(server.url("/r"))
        second = await fetch(str(first.location))

    assert first.location == server.url("/t")
    assert (second.status, second.body) == (200, b"in")


PAST, FUTURE = b"Thu, 01 Jan 1970 00:00:00 GMT", b"Fri, 31 Dec 9999 23:59:59 GMT"


@pytest.mark.parametrize(
    ("attributes", "is_kept"),
    [
        (b"", True),
        (b"; Max-Age=3600", True),
        (b"; Max-Age=0", False),
        (b"; Max-Age=-1", False),
        (b"; Max-Age=" + b"9" * 40, True),
        (b"; Max-Age=soon", True),  # not understood: as if it were not there
        (b"; Max-Age", True),
        (b"; Expires=" + FUTURE, True),
        (b"; Expires=" + PAST, False),
        (b"; Expires=" + FUTURE.replace(b" ", b"-", 3).replace(b"Fri,-", b"Friday, "), True),
        (b"; Expires=" + PAST[:-4] + b" +0100", False),
        (b"; Expires=Fri, 99 Foo 2099 99:99:99 GMT", True),
        (b"; Expires=0", True),
        (b"; Expires=", True),
        (b"; Max-Age=0; Expires=" + FUTURE, False),  # Max-Age counts (RFC 6265, 5.3)
        (b"; Max-Age=3600; Expires=" + PAST, True),
    ],
)
async def test_cookies_are_kept_for_as_long_as_they_are_meant(
    fetch: Fetching, attributes: bytes, is_kept: bool
) -> None:
    scripts: dict[str, Script] = {
        "/": Reply(page(headers=(b"Set-Cookie: k=old",))),
        "/again": Reply(page(headers=(b"Set-Cookie: k=new; Path=/" + attributes,))),
        "/then": Reply(page()),
    }
    async with RawServer(scripts) as server:
        for path in scripts:
            assert (await fetch(server.url(path))).error is None
        sent = server.requests[-1].header("Cookie")

    assert sent == ("k=new" if is_kept else None)


async def test_a_cookie_ends_with_its_time(fetch: Fetching) -> None:
    scripts: dict[str, Script] = {
        "/": Reply(page(headers=(b"Set-Cookie: brief=1; Max-Age=1", b"Set-Cookie: k=2"))),
        "/then": Reply(page()),
    }
    async with RawServer(scripts) as server:
        await fetch(server.url("/"))
        await asyncio.sleep(1.5)
        await fetch(server.url("/then"))

    assert server.requests[-1].header("Cookie") == "k=2"


async def test_cookies_stay_with_their_host(fetch: Fetching) -> None:
    async with (
        RawServer({"/": Reply(page(headers=(b"Set-Cookie: a=b/c=d; Path=/",)))}) as one,
        RawServer({"/": Reply(page())}, address="127.1.0.2") as other,
    ):
        for server in (one, other, one):
            await fetch(server.url("/"))

        assert [request.header("Cookie") for request in one.requests] == [None, "a=b/c=d"]
        assert other.requests[0].header("Cookie") is None


async def test_headers_and_cookies_of_the_job_go_to_trusted_hosts_only(fetch: Fetching) -> None:
    spec = {
        "header": ("Authorization: Bearer x:y", "X-Two: 1", "X-Two: 2"),
        "cookie": ("session=abc", "lang=de"),
        "user_agent": "probe/1.0 (+http://probe.test)",
    }
    reply = Reply(page(headers=(b"Set-Cookie: session=new",)))
    async with RawServer({"/": reply}) as server:
        await fetch(server.url("/"), spec=spec, trusted=True)
        await fetch(server.url("/"), spec=spec, trusted=True)
        await fetch(server.url("/"), spec=spec)

        first, second, untrusted = server.requests
        assert first.header("Authorization") == "Bearer x:y"
        assert first.head.count(b"X-Two: ") == 2
        assert first.header("Cookie") == "session=abc; lang=de"
        assert first.header("User-Agent") == "probe/1.0 (+http://probe.test)"
        # A value the server gives replaces the one the job began with.
        assert set(str(second.header("Cookie")).split("; ")) == {"session=new", "lang=de"}
        assert untrusted.header("Authorization") is None
        assert untrusted.header("Cookie") == "session=new"


async def test_secrets_are_resolved_here(fetch: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITE_TOKEN", "s3cret")
    async with RawServer({"/": Reply(page())}) as server:
        await fetch(server.url("/"), spec={"header": ("X-Token: env:SITE_TOKEN",)}, trusted=True)

        assert server.requests[0].header("X-Token") == "s3cret"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"header": ("no colon",)}, "--header"),
        ({"header": ("Bad Name: x",)}, "--header"),
        ({"header": ("X: a\r\nY: b",)}, "--header"),
        ({"cookie": ("a=b; c=d",)}, "--cookie"),
        ({"cookie": ("=x",)}, "--cookie"),
        ({"proxy": "ftp://127.0.0.1:1"}, "--proxy"),
        ({"proxy": "nonsense"}, "--proxy"),
        ({"header": ("X: env:NOT_SET_ANYWHERE",)}, "--header X"),
    ],
)
async def test_malformed_job_options_are_named(options: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        Fetcher(JobSpec(**options), connections=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "target",
    [
        "/a?",
        "/?",
        "/a//b",
        "//x",
        "/a;b=c:d@e",
        "/a|b'c{}^`",
        "/%2e%2e/x",
        "/%7euser",
        "/a?q=%26&x=+%20&y=a;b",
        "/a?b?c",
        "/100%",
        "/a?redirect=http://b.test/c",
        "/" + "x" * 8000,
    ],
)
async def test_target_is_sent_byte_for_byte(fetch: Fetching, target: str) -> None:
    async with RawServer({}) as server:
        fetched = await fetch(server.url(target))

        assert fetched.status == 404
        assert [request.target for request in server.requests] == [target]
        assert server.requests[0].header("Host") == f"127.0.0.1:{server.port}"


async def test_ipv6_host_keeps_its_brackets(fetch: Fetching) -> None:
    """H13."""
    async with RawServer({"/x": Reply(page())}, address="::1") as server:
        fetched = await fetch(server.url("/x"))

        assert fetched.status == 200
        assert fetched.ip == "::1"
        assert server.requests[0].header("Host") == f"[::1]:{server.port}"


@pytest.mark.parametrize(
    ("accept", "sent", "code"),
    [
        ("text/html", b"Content-Type: text/html; charset=x", None),
        ("text/html", b"Content-Type: TEXT/HTML", None),
        ("text/html", b"Content-Type: audio/mpeg", "refused_type"),
        ("text/html", b"Content-Type: text/plain", "refused_type"),
        ("image/*", b"Content-Type: image/png", None),
        ("image/*", b"Content-Type: text/html", "refused_type"),
        ("*/*", b"Content-Type: audio/mpeg", None),
        ("text/html", b"X-Type: none", None),
    ],
)
async def test_media_types_not_accepted_are_refused(
    fetch: Fetching, accept: str, sent: bytes, code: str | None
) -> None:
    async with RawServer({"/": Reply(page(b"body", headers=(sent,)))}) as server:
        fetched = await fetch(server.url("/"), spec={"accept": (accept,)})

        assert code_of(fetched) == code
        assert fetched.status == 200
        assert fetched.body == (b"" if code else b"body")
        assert server.requests[0].header("Accept") == accept


async def test_media_type_of_errors_and_of_robots_does_not_matter(fetch: Fetching) -> None:
    spec = {"accept": ("image/*",)}
    scripts: dict[str, Script] = {
        "/gone": Reply(page(b"gone", status="410 Gone")),
        "/robots.txt": Reply(page(b"User-agent: *", headers=(b"Content-Type: text/plain",))),
    }
    async with RawServer(scripts) as server:
        gone = await fetch(server.url("/gone"), spec=spec)
        robots = await fetch(server.url("/robots.txt"), spec=spec, any_type=True)

    assert (gone.status, gone.error) == (410, None)
    assert robots.body == b"User-agent: *"
