"""Hooks: what they may give, and that whatever they do stays within the page."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import structlog

import worker.plugin_calls
import worker.plugin_faults
import worker.plugins
from common.model.errors import CrawlerError
from common.model.job import JobSpec
from common.plugins.api import JobInfo, Link, Plugin, Request, Response
from tests.support.plugins import Example, Failing, Stubborn, plugins
from worker.plugin_answers import MAX_DEPTH, MAX_EXTRA_BYTES, MAX_LINKS
from worker.plugin_faults import PluginFailed, PluginFaults
from worker.plugins import MAX_RULES, JobPlugins, open_plugins

PAGE = Response(
    url="http://h.example/a/page", final_url="http://h.example/a/page", status=200,
    headers=(("X-Server", "one"), ("x-server", "two")), content_type="text/html; charset=latin1",
    body=b"caf\xe9", truncated=False, title="t", encoding="windows-1252",
    links=("http://h.example/known",), depth=0, referrer=None,
)  # fmt: skip
REQUEST = Request(url=PAGE.url, depth=0, attempt=1, is_sitemap=False)


async def opened(faults: PluginFaults | None = None, **kinds: type[Plugin]) -> JobPlugins:
    job = JobPlugins(faults or PluginFaults())
    for name, kind in kinds.items():
        info = JobInfo(id="j", plugin=name, user_agent="bot", worker="w")
        await job.open(name, kind, info)
    return job


def plugin(hook: str, act: Callable[..., Any]) -> type[Plugin]:
    """Return a plugin with one hook."""
    return type("Made", (Plugin,), {hook: lambda _self, given: act(given)})


async def ask(job: JobPlugins, hook: str) -> object:
    match hook:
        case "prepare":
            return await job.prepare(REQUEST)
        case "refuse":
            return let_pass(job, PAGE.url)
        case _:
            return await job.read(PAGE, is_page=True)


def let_pass(job: JobPlugins, *links: str) -> tuple[list[str], Counter[str]]:
    filtered: Counter[str] = Counter()
    return job.let_pass(links, filtered, depth=1, referrer=PAGE.url), filtered


def test_a_response_reads_its_text_and_its_headers() -> None:
    assert ("café", "one", None) == (PAGE.text, PAGE.header("X-SERVER"), PAGE.header("none"))
    with pytest.raises(AttributeError):
        PAGE.status = 1  # type: ignore[misc]


async def test_only_hooks_that_are_there_are_known() -> None:
    job = await opened(p=plugin("parse", lambda _: None))
    asked = ("refuse", "prepare", "parse", "enrich")
    assert ["parse"] == [hook for hook in asked if job.has(hook)]
    assert (PAGE.links, None) == await job.read(PAGE, is_page=True)
    assert await job.prepare(REQUEST) is None


async def test_plugins_are_asked_in_order_and_see_what_those_before_them_found() -> None:
    def follow(name: str) -> Callable[[Response], Iterator[str]]:
        def act(response: Response) -> Iterator[str]:
            yield f"{len(response.links)}-{name}"

        return act

    job = await opened(
        b=plugin("parse", follow("b")),
        a=plugin("parse", follow("a")),
        c=plugin("enrich", lambda response: {"links": list(response.links)}),
    )
    links, extra = await job.read(PAGE, is_page=True)
    assert (PAGE.links[0], "http://h.example/a/1-b", "http://h.example/a/2-a") == links
    assert {"c": {"links": list(links)}} == extra
    assert (PAGE.links, {"c": {"links": [*PAGE.links]}}) == await job.read(PAGE, is_page=False)


async def test_of_two_headers_of_one_name_the_last_counts() -> None:
    job = await opened(
        a=plugin("prepare", lambda _: {"X-One": "a", "x-one": "b", "X-Two": "a"}),
        b=plugin("prepare", lambda _: {"x-TWO": "b"}),
    )
    found = await job.prepare(REQUEST)
    assert found is not None
    assert [("x-one", "b"), ("x-two", "b")] == [(name.lower(), v) for name, v in found.items()]


async def test_links_are_canonical_distinct_and_crawlable() -> None:
    given = ["x#y", "x", "/known", "javascript:0", "http://[", "\udcff", "HTTP://H.example:80/z"]
    job = await opened(p=plugin("parse", lambda _: given))
    links, _ = await job.read(PAGE, is_page=True)
    host = "http://h.example"
    assert (f"{host}/known", f"{host}/a/x", f"{host}/a/%EF%BF%BD", f"{host}/z") == links


@pytest.mark.parametrize(
    ("hook", "given", "said"),
    [
        ("parse", "http://h.example/", "str"),
        ("parse", 7, "int"),
        ("parse", ["x", None], "texts"),
        ("parse", map(str, count()), f"more than {MAX_LINKS}"),
        ("enrich", ["x"], "list"),
        ("enrich", {"x": object()}, "object"),
        ("enrich", {"x": "\udcff"}, "surrogates"),
        ("enrich", {"x": "y" * MAX_EXTRA_BYTES}, f"at most {MAX_EXTRA_BYTES}"),
        ("prepare", ["x"], "list"),
        ("prepare", {"X": 1}, "texts"),
        ("prepare", {"X": "a\r\nY: b"}, "X: the value cannot be sent"),
        ("prepare", {"X Y": "a"}, "'X Y': it is no name"),
        ("prepare", {"X\n": "a"}, "it is no name"),
        ("prepare", {"HOST": "a"}, "HOST: it is set for each request"),
        ("prepare", {"content-length": "1"}, "content-length: it is set"),
        ("prepare", {"Transfer-Encoding": "chunked"}, "Transfer-Encoding: it is set"),
        ("refuse", False, "bool"),
        ("refuse", "", "str"),
    ],
)
async def test_what_cannot_be_taken_fails_the_page_and_says_why(
    hook: str, given: Any, said: str
) -> None:
    faults = PluginFaults()
    job = await opened(faults, p=plugin(hook, lambda _: given))
    with pytest.raises(PluginFailed, match=f"^plugin p, {hook}: ") as caught:
        await ask(job, hook)
    assert said in str(caught.value)
    assert {("p", hook): 1} == faults.counts


@pytest.mark.parametrize("wrap", [lambda inner: {"x": inner}, lambda inner: [inner]])
async def test_facts_are_not_nested_without_end(wrap: Callable[[Any], Any]) -> None:
    def nested(levels: int) -> dict[str, Any]:
        found: Any = 1
        for _ in range(levels - 1):
            found = wrap(found)
        return {"x": found}

    for levels, fits in ((MAX_DEPTH, True), (MAX_DEPTH + 1, False), (5000, False)):
        job = await opened(p=plugin("enrich", lambda _, levels=levels: nested(levels)))
        if fits:
            assert (PAGE.links, {"p": nested(levels)}) == await job.read(PAGE, is_page=True)
        else:
            with pytest.raises(PluginFailed):
                await job.read(PAGE, is_page=True)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def act(_: Any) -> Any:
        raise error

    return act


def raising_later(error: BaseException) -> Callable[[Any], Any]:
    async def act(_: Any) -> Any:
        await asyncio.sleep(0)
        raise error

    return act


class Panic(BaseException):
    """What libraries in Rust raise."""


@pytest.mark.parametrize("make", [raising, raising_later])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("a\n\x1b[31mb"),
        SystemExit(3),
        asyncio.CancelledError(),
        Panic("p"),
        StopIteration,
        GeneratorExit(),
        SyntaxError("x", ("file", 1, 1, 7)),  # of which a traceback cannot be written
    ],
    ids=repr,
)
async def test_whatever_a_hook_raises_fails_its_page_alone(
    make: Callable[[BaseException], Callable[[Any], Any]], error: BaseException
) -> None:
    job = await opened(p=plugin("enrich", make(error)))
    with pytest.raises(PluginFailed, match=r"^plugin p, enrich: ") as caught:
        await job.read(PAGE, is_page=True)
    assert str(caught.value).isprintable()


async def test_a_page_that_is_cancelled_is_no_fault() -> None:
    reached, faults = asyncio.Event(), PluginFaults()

    async def wait(_: Response) -> None:
        reached.set()
        await asyncio.Event().wait()

    job = await opened(faults, p=plugin("enrich", wait))
    page = asyncio.create_task(job.read(PAGE, is_page=True))
    await reached.wait()
    page.cancel()
    with pytest.raises(asyncio.CancelledError):
        await page
    assert not faults.counts


async def test_a_hook_that_awaits_for_ever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker.plugin_calls, "HOOK_S", 0.01)
    monkeypatch.setattr(worker.plugins, "PREPARE_S", 0.02)

    async def wait(_: object) -> None:
        await asyncio.Event().wait()

    job = await opened(p=plugin("enrich", wait), q=plugin("prepare", wait))
    with pytest.raises(PluginFailed, match=r"enrich: .* not done within 0\.01 s"):
        await ask(job, "enrich")
    with pytest.raises(PluginFailed, match=r"prepare: .* not done within 0\.02 s"):
        await ask(job, "prepare")


async def test_a_hook_that_cancels_its_own_task_fails_its_page_alone() -> None:
    async def cancel(_: Response) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    job = await opened(p=plugin("enrich", cancel))
    with pytest.raises(PluginFailed, match=r"^plugin p, enrich: .*CancelledError"):
        await ask(job, "enrich")


async def test_a_hook_that_does_not_let_itself_be_cancelled_holds_no_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker.plugin_calls, "HOOK_S", 0.01)
    ends = asyncio.Event()

    async def stay(_: Response) -> None:
        while not ends.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await ends.wait()

    job = await opened(p=plugin("enrich", stay))
    with pytest.raises(PluginFailed, match=r"not done within 0\.01 s"):
        await ask(job, "enrich")
    monkeypatch.undo()
    page = asyncio.create_task(job.read(PAGE, is_page=True))
    await asyncio.sleep(0.01)
    page.cancel()
    with pytest.raises(asyncio.CancelledError):
        await page
    ends.set()


async def test_all_plugins_together_have_the_time_in_which_a_request_is_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them in time, and all too late for the claim, would send the page back for ever."""
    monkeypatch.setattr(worker.plugins, "PREPARE_S", 0.3)

    async def slow(_: Request) -> None:
        await asyncio.sleep(0.2)

    job = await opened(p=plugin("prepare", slow), q=plugin("prepare", slow))
    with pytest.raises(PluginFailed, match=r"prepare: .* not done within 0\.3 s, with the"):
        await ask(job, "prepare")
    job = await opened(p=plugin("prepare", lambda _: time.sleep(0.4)))
    with pytest.raises(PluginFailed, match=r"^plugin p, prepare: .* not done within 0\.3 s"):
        await ask(job, "prepare")


async def test_refused_links_are_counted_by_rule_and_rules_are_bounded() -> None:
    job = await opened(p=Example)
    links = ("http://h.example/calendar/1", "http://h.example/x", "http://h.example/calendar/2")
    assert (["http://h.example/x"], {"plugin p: calendar": 2}) == let_pass(job, *links)
    job = await opened(p=plugin("refuse", lambda link: f"\udcff\n{link.url}" + "x" * 1000))
    _, filtered = let_pass(job, *(f"http://h.example/{number}" for number in range(500)))
    assert 500 == filtered.total()
    assert MAX_RULES + 1 == len(filtered)
    assert 500 - MAX_RULES == filtered["plugin p: other rules"]
    assert all(rule.isprintable() and len(rule) < 100 for rule in filtered)


async def test_a_link_of_a_sitemap_on_which_a_plugin_fails_costs_no_other() -> None:
    def refuse(link: Link) -> None:
        if link.url.endswith("/bad"):
            raise ValueError(link.url)

    faults, filtered = PluginFaults(), Counter[str]()
    job = await opened(faults, p=plugin("refuse", refuse))
    links = [f"http://h.example/{name}" for name in ("one", "bad", "two")]
    kept = job.let_pass(links, filtered, depth=1, referrer=PAGE.url, is_sitemap=True)
    assert ([links[0], links[2]], {"plugin p: failed": 1}) == (kept, filtered)
    assert {("p", "refuse"): 1} == faults.counts


async def test_a_fault_is_logged_at_first_and_then_once_in_a_while() -> None:
    faults = PluginFaults()
    with structlog.testing.capture_logs() as logged:
        for _ in range(1000):
            faults.note("p", "enrich", ValueError("x"))
        faults.note("p", "parse", ValueError("x"))
    assert [("enrich", 1), ("parse", 1)] == [(one["hook"], one["so_far"]) for one in logged]
    assert {("p", "enrich"): 1000, ("p", "parse"): 1} == faults.counts


@pytest.mark.parametrize("hook", ["refuse", "prepare", "parse", "enrich"])
@pytest.mark.parametrize("awaits", [False, True])
async def test_a_hook_in_which_the_loop_stands_still_is_named(
    monkeypatch: pytest.MonkeyPatch, hook: str, awaits: bool
) -> None:
    monkeypatch.setattr(worker.plugin_faults, "BLOCKS_S", 0.2)

    async def sleep(_: object) -> None:
        await asyncio.sleep(0)
        time.sleep(worker.plugin_faults.BLOCKS_S)  # noqa: ASYNC251 - what must not be done

    act = (
        sleep
        if awaits and hook != "refuse"
        else lambda _: time.sleep(worker.plugin_faults.BLOCKS_S)
    )
    job = await opened(p=plugin(hook, act))
    with structlog.testing.capture_logs() as logged:
        await ask(job, hook)
        await ask(job, hook)
    (told,) = logged  # not again within minutes
    assert ("plugin.blocked_the_worker", "p", hook) == (told["event"], told["plugin"], told["hook"])
    assert told["seconds"] >= 0.2


async def test_time_that_a_hook_awaits_is_not_held_against_it() -> None:
    class Taken(PluginFaults):
        seconds = 0.0

        def took(self, plugin: str, hook: str, seconds: float) -> None:
            self.seconds += seconds

    async def sleep(_: object) -> None:
        await asyncio.sleep(0.3)

    taken = Taken()
    job = await opened(taken, p=plugin("enrich", sleep))
    began, taken.seconds = time.monotonic(), 0.0
    await ask(job, "enrich")
    assert time.monotonic() - began - taken.seconds >= 0.29


async def test_a_cancelled_hook_that_awaits_is_told() -> None:
    told = asyncio.Event()

    async def wait(_: object) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            told.set()
            raise

    job = await opened(p=plugin("enrich", wait))
    asking = asyncio.create_task(ask(job, "enrich"))
    await asyncio.sleep(0.01)
    asking.cancel()
    await told.wait()


async def test_plugins_that_were_opened_are_closed_where_another_cannot_be() -> None:
    Example.events.clear()
    available = plugins(good=Example, bad=Stubborn)
    spec, faults = JobSpec(plugin=("good", "bad")), PluginFaults()
    with pytest.raises(CrawlerError, match=r"^plugin bad, opened: RuntimeError: no door for bad"):
        await open_plugins(available, spec, job="j", worker="w", faults=faults)
    assert [("opened", "j"), ("closed", "j")] == Example.events
    assert await open_plugins(available, JobSpec(), job="j", worker="w", faults=faults) is None


async def test_a_plugin_that_cannot_be_closed_keeps_no_other_open() -> None:
    Example.events.clear()
    closing = type("Closing", (Failing,), {"closed": raising(ValueError("x"))})
    job = await opened(first=Example, last=closing)
    await job.close()
    assert ("closed", "j") == Example.events[-1]
