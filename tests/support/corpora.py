"""A corpus of web inputs with expected outputs, and how much of it we answer as expected.

Firm lines are those on which standards agree; contentious ones are counted, not judged. Left out
are lines that take a server: robots.txt behind redirects and failures (see the field reports).
``python -m tests.support.corpora`` prints the counts of each file.

The corpus is no part of the project: it may lie in a folder ``shared/corpora`` beside the checkout,
a file of JSON lines for each of ``CHECKS`` (``robots.jsonl`` and so on): input, expected answer,
and whether it is ``contentious``. Without it its tests are skipped; nothing else depends on it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from common.web import sitemap
from common.web.html import HtmlParser, Page
from common.web.robots import RobotsPolicy, RobotsRules, policy_for_status
from common.web.url import canonicalize
from tests.support.arguments import Parser

FOLDER: Final = Path(__file__).parents[3] / "shared" / "corpora"
Case = dict[str, Any]

_PARSER: Final = HtmlParser()
_LINKS, _FRAMES = frozenset(("a", "area")), frozenset(("iframe", "frame", "meta-refresh"))
_POLICIES: Final = {
    "parse": RobotsPolicy.PARSE,
    "follow": RobotsPolicy.FOLLOW,
    "allow_all": RobotsPolicy.ALLOW_ALL,
    "disallow_all": RobotsPolicy.UNAVAILABLE,
}


def cases(name: str) -> Iterator[Case]:
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as lines:
        for case in map(json.loads, lines):
            if isinstance(case.get("status", 0), int):
                yield case


class Score(NamedTuple):
    """Lines answered as expected, and lines there are."""

    firm: tuple[int, int]
    contentious: tuple[int, int]


def score(name: str) -> Score:
    found = {False: [0, 0], True: [0, 0]}
    for case in cases(name):
        counts = found[case["contentious"]]
        counts[0] += answers(name, case)
        counts[1] += 1
    return Score(*((right, total) for right, total in found.values()))


def answers(name: str, case: Case) -> bool:
    """Tell whether a line is answered as it expects."""
    return CHECKS[name](case)


def _identity(href: str | None) -> str | None:
    """What is left of a serialised URL as an identity: see the docstring of common.web.url."""
    if href is None or not href.startswith(("http://", "https://")):
        return None
    href = re.sub(r"^(https?://)[^/@]*@", r"\1", href.partition("#")[0])
    if re.search("%(?![0-9A-Fa-f]{2})", href):
        return re.sub("%[0-9A-Fa-f]{2}", lambda found: found[0].upper(), href)

    def fold(found: re.Match[str]) -> str:
        char = chr(int(found[1], 16))
        return char if char.isascii() and (char.isalnum() or char in "-._~") else found[0].upper()

    return re.sub("%([0-9A-Fa-f]{2})", fold, href)


def _url(case: Case) -> bool:
    if case["kind"] == "join":
        return canonicalize(case["href"], case["base"]) == _identity(case["expected_absolute"])
    return (canonicalize(case["url_a"]) == canonicalize(case["url_b"])) == bool(case["same"])


def _links(case: Case) -> bool:
    def parsed(follow: frozenset[str]) -> Page:
        body = case["html"].encode("utf-8", "surrogatepass")
        base = canonicalize(case["base_url"]) or ""
        return _PARSER.parse(body, url=base, content_type="text/html; charset=utf-8", follow=follow)

    refresh = (case["meta_refresh"] or {}).get("url")
    frames = case["frames"] + ([refresh] if refresh else [])
    return parsed(_LINKS).links == case["expected_links"] and parsed(_FRAMES).links == frames


def _encoding(case: Case) -> bool:
    body, sent_type = base64.b64decode(case["bytes_b64"]), case["http_content_type"]
    page = _PARSER.parse(body, url="http://h.example/", content_type=sent_type, follow=_LINKS)
    title = case["expected_title_or_text"]
    return page.encoding == case["expected_encoding"] and title in (None, page.title)


def _robots_txt(case: Case) -> bytes:
    if "robots_txt_b64" in case:
        return base64.b64decode(case["robots_txt_b64"])
    if made := case.get("robots_txt_gen"):
        text = made["prefix"] + made["filler_line"] * made["filler_repeat"] + made["suffix"]
        return str(text).encode()
    return str(case["robots_txt"]).encode("utf-8", "surrogatepass")


def _robots(case: Case) -> bool:
    if case["kind"] == "status":
        return policy_for_status(case["status"]) is _POLICIES[case["expected_policy"]]
    agent = case.get("user_agent", "mybot")
    rules = RobotsRules.parse(_robots_txt(case), user_agent=agent)
    match case["kind"]:
        case "match":
            url = canonicalize(case["url"])
            verdict = None if url is None else rules.verdict(url)
            if verdict is None or verdict.allowed != case["allowed"]:
                return False
            return verdict.allowed or bool(verdict.rule)
        case "crawl_delay":
            return bool(rules.crawl_delay_s == case["expected_crawl_delay_s"])
        case "sitemap_lines":
            found = [canonicalize(value, case["base"]) for value in rules.sitemaps]
            return bool(found == case["expected_sitemaps"])
    return False


def _sitemap(case: Case) -> bool:
    found = sitemap.parse((FOLDER / case["file"]).read_bytes())
    pages = [canonicalize(entry.url, case["fetched_from"]) for entry in found.pages]
    children = [canonicalize(entry.url, case["fetched_from"]) for entry in found.children]
    expected = (case["kind"], case["expected_page_urls"], case["expected_child_sitemaps"])
    return (found.kind, pages, children) == expected


CHECKS: Final[dict[str, Callable[[Case], bool]]] = {
    "encoding": _encoding,
    "links": _links,
    "robots": _robots,
    "sitemaps": _sitemap,
    "urlnorm": _url,
}


def main() -> None:
    parser = Parser(prog="python -m tests.support.corpora", description=__doc__)
    parser.parse_args()
    if not FOLDER.is_dir():
        parser.error(f"there are no corpora here (expected in {FOLDER})")
    for name in CHECKS:
        (right, firm), (some, contentious) = score(name)
        print(f"{name:9} firm {right}/{firm}  contentious {some}/{contentious}")


if __name__ == "__main__":
    main()
