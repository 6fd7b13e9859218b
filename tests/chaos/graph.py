"""A generated web of several hosts, and what a crawl of it must find.

``walk`` is the judge's yardstick: it knows the graph itself and shares no code with the crawler.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Literal

import msgspec

Kind = Literal["page", "gone", "redirect", "flaky", "slow", "fickle"]
"""fickle: its first link is shown to whoever asks first, and to nobody else."""
Ref = tuple[int, str]
"""A URL of the web: number of the host, path."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """How one path answers."""

    kind: Kind = "page"
    links: tuple[Ref, ...] = ()
    """Of a redirect: its target alone."""
    refusals: int = 0
    """How many requests are answered 503 before the page comes (flaky)."""
    delay_s: float = 0.0


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """One authority."""

    pages: dict[str, Page]
    robots: str | None = None
    """None: there is none (404)."""
    denied: str | None = None
    """Path prefix that the robots rules deny."""
    crawl_delay_s: float = 0.0
    is_in_scope: bool = True


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """All hosts; seeds are the roots of those in scope."""

    hosts: tuple[Host, ...]

    @property
    def seeds(self) -> list[Ref]:
        return [(number, "/") for number, host in enumerate(self.hosts) if host.is_in_scope]


UNLINKED: Sequence[str] = tuple(f"/added{number}" for number in range(8))
"""Pages of the first host to which nothing leads: seeds to be added."""
_ROBOTS: Sequence[tuple[str | None, str | None, float]] = (
    (None, None, 0.0),
    ("User-agent: *\nDisallow: /private/\n", "/private/", 0.0),
    ("User-agent: *\nCrawl-delay: 0.5\n", None, 0.5),
    ("User-agent: *\nAllow: /\n", None, 0.0),
    ("User-agent: *\nDisallow: /private/\nAllow: /\n", "/private/", 0.0),
)
_KINDS: Sequence[tuple[Kind, float]] = (
    ("page", 78), ("gone", 6), ("redirect", 8), ("flaky", 4), ("slow", 4),
)  # fmt: skip


def generated(seed: int, *, hosts: int = 6, pages: int = 22) -> Graph:
    """Return a graph in which every page can be reached from a seed."""
    chance = random.Random(f"graph {seed}")
    paths: list[list[str]] = []
    rules = [_ROBOTS[number % len(_ROBOTS)] for number in range(hosts)]
    for number in range(hosts):
        count = pages // 2 if rules[number][2] else pages
        names = ["/"] + [f"/p{index}" for index in range(1, count)]
        if rules[number][1]:
            names += [f"{rules[number][1]}{index}" for index in range(3)]
        paths.append(names)
    kinds: dict[Ref, Kind] = {}
    links: dict[Ref, list[Ref]] = {}
    everything = [(number, path) for number in range(hosts) for path in paths[number]]
    for ref in everything:
        is_plain = ref[1] == "/" or _is_denied(rules[ref[0]], ref[1])
        names, weights = zip(*_KINDS, strict=True)
        kinds[ref] = "page" if is_plain else chance.choices(names, weights)[0]
        links[ref] = []
    # A tree that reaches everything, then links at random, some of them to a host out of scope.
    growing = [ref for ref in everything if ref[1] == "/"]
    waiting = [ref for ref in everything if ref[1] != "/"]
    chance.shuffle(waiting)
    for ref in waiting:
        parent = chance.choice(growing[-12:])
        links[parent].append(ref)
        if kinds[ref] in ("page", "flaky", "slow") and not _is_denied(rules[ref[0]], ref[1]):
            growing.append(ref)
    outside = (hosts, "/out")
    for ref in everything:
        if kinds[ref] == "redirect":
            links[ref] = [chance.choice([one for one in everything if one != ref])]
        elif kinds[ref] != "gone":
            links[ref] += chance.sample(everything, chance.randint(0, 4))
            if chance.random() < 0.1:
                links[ref].append(outside)
    unlinked = {path: Page(links=tuple(chance.sample(everything, 2))) for path in UNLINKED}
    made = [
        Host(
            pages={
                path: _page(kinds[number, path], links[number, path], chance)
                for path in paths[number]
            }
            | (unlinked if number == 0 else {}),
            robots=rules[number][0],
            denied=rules[number][1],
            crawl_delay_s=rules[number][2],
        )
        for number in range(hosts)
    ]
    return Graph(hosts=(*made, Host(pages={"/out": Page()}, is_in_scope=False)))


def _is_denied(rule: tuple[str | None, str | None, float], path: str) -> bool:
    return rule[1] is not None and path.startswith(rule[1])


def _page(kind: Kind, links: Sequence[Ref], chance: random.Random) -> Page:
    return Page(
        kind=kind,
        links=tuple(links),
        refusals=1 if kind == "flaky" else 0,
        delay_s=chance.uniform(0.4, 1.2) if kind == "slow" else 0.0,
    )


def outcome_of(graph: Graph, ref: Ref) -> tuple[str, int | None]:
    """Return the outcome and the status with which a URL in scope must end."""
    host = graph.hosts[ref[0]]
    if host.denied and ref[1].startswith(host.denied):
        return "denied", None
    page = host.pages[ref[1]]
    if page.kind == "redirect":
        return "redirected", 301
    return "fetched", 404 if page.kind == "gone" else 200


def walk(graph: Graph, added: Sequence[Ref] = ()) -> dict[Ref, tuple[str, int | None]]:
    """Return every URL that a crawl must end with, and how.

    Args:
        graph: the web.
        added: further seeds.
    """
    found: dict[Ref, tuple[str, int | None]] = {}
    waiting = deque([*graph.seeds, *added])
    while waiting:
        ref = waiting.popleft()
        if ref in found or not graph.hosts[ref[0]].is_in_scope:
            continue
        found[ref] = outcome_of(graph, ref)
        if found[ref][0] != "denied":
            page = graph.hosts[ref[0]].pages[ref[1]]
            waiting.extend(page.links[1:] if page.kind == "fickle" else page.links)
    return found
