"""The rules of the web against a corpus of inputs and expected outputs, where one lies beside us.

Counts are exact on purpose: a change for the better is written down here, one for the worse fails.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common.web import charset, sitemap
from common.web.html import HtmlParser
from common.web.robots import RobotsPolicy, RobotsRules, policy_for_status
from common.web.url import canonicalize

_CORPORA = Path(__file__).parents[4] / "shared" / "corpora"
pytestmark = pytest.mark.skipif(
    not _CORPORA.is_dir(), reason=f"NO SHARED: no corpus of web inputs at {_CORPORA}"
)
_FOLLOW = frozenset(("a", "area"))


def _firm(name: str) -> Iterator[dict[str, Any]]:
    with (_CORPORA / f"{name}.jsonl").open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    return (case for case in cases if not case["contentious"])


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


def test_every_join_gives_the_url_of_the_standard() -> None:
    cases = [case for case in _firm("urlnorm") if case["kind"] == "join"]
    wrong = [
        case
        for case in cases
        if canonicalize(case["href"], case["base"]) != _identity(case["expected_absolute"])
    ]
    assert wrong == []
    assert len(cases) >= 500


def test_every_pair_is_one_or_two_urls_as_the_standards_say() -> None:
    wrong = [
        case
        for case in _firm("urlnorm")
        if case["kind"] == "pair"
        and (canonicalize(case["url_a"]) == canonicalize(case["url_b"])) != case["same"]
    ]
    assert wrong == []


def test_every_page_gives_its_links_in_order() -> None:
    parser = HtmlParser()
    wrong = []
    for case in _firm("links"):
        page = parser.parse(
            case["html"].encode("utf-8", "surrogatepass"),
            url=canonicalize(case["base_url"]) or "",
            content_type="text/html; charset=utf-8",
            follow=_FOLLOW,
        )
        if page.links != case["expected_links"]:
            wrong.append((case["id"], case["expected_links"], page.links))
    assert wrong == []


def test_every_frame_and_refresh_is_found() -> None:
    parser = HtmlParser()
    wrong = []
    for case in _firm("links"):
        page = parser.parse(
            case["html"].encode("utf-8", "surrogatepass"),
            url=canonicalize(case["base_url"]) or "",
            content_type="text/html; charset=utf-8",
            follow=frozenset(("iframe", "frame", "meta-refresh")),
        )
        refresh = (case["meta_refresh"] or {}).get("url")
        expected = case["frames"] + ([refresh] if refresh else [])
        if page.links != expected:
            wrong.append((case["id"], expected, page.links))
    assert wrong == []


def test_every_document_is_read_in_its_encoding() -> None:
    parser = HtmlParser()
    wrong = []
    for case in _firm("encoding"):
        body = base64.b64decode(case["bytes_b64"])
        page = parser.parse(
            body,
            url="http://h.example/",
            content_type=case["http_content_type"],
            follow=_FOLLOW,
        )
        title = case["expected_title_or_text"]
        expected = (case["expected_encoding"], page.title if title is None else title)
        if (page.encoding, page.title) != expected:
            wrong.append((case["id"], expected, page.encoding, page.title))
    assert wrong == []


def test_no_decoy_is_taken_for_a_declaration_of_encoding() -> None:
    with (_CORPORA / "encoding.jsonl").open(encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    decoys = [case for case in cases if "decoy" in case["note"]]
    for case in decoys:
        found = charset.sniff(base64.b64decode(case["bytes_b64"]), case["http_content_type"])
        assert found in (charset.UTF_8, charset.WINDOWS_1252), case["id"]
    assert len(decoys) >= 15


def _robots_txt(case: dict[str, Any]) -> bytes:
    if "robots_txt_b64" in case:
        return base64.b64decode(case["robots_txt_b64"])
    if case.get("robots_txt_gen"):
        made = case["robots_txt_gen"]
        text = made["prefix"] + made["filler_line"] * made["filler_repeat"] + made["suffix"]
        return str(text).encode()
    return str(case["robots_txt"]).encode("utf-8", "surrogatepass")


def test_every_robots_rule_is_obeyed() -> None:
    cases = [case for case in _firm("robots") if case["kind"] == "match"]
    wrong = []
    for case in cases:
        rules = RobotsRules.parse(_robots_txt(case), user_agent=case["user_agent"])
        url = canonicalize(case["url"])
        assert url is not None
        verdict = rules.verdict(url)
        if verdict.allowed != case["allowed"] or not (verdict.allowed or verdict.rule):
            wrong.append((_robots_txt(case)[:300], case["user_agent"], url, verdict))
    assert wrong == []
    assert len(cases) >= 600


def test_every_status_of_robots_txt_means_what_the_standard_says() -> None:
    policies = {
        "parse": RobotsPolicy.PARSE,
        "follow": RobotsPolicy.FOLLOW,
        "allow_all": RobotsPolicy.ALLOW_ALL,
        "disallow_all": RobotsPolicy.UNAVAILABLE,
    }
    for case in _firm("robots"):
        if case["kind"] == "status" and isinstance(case["status"], int):
            expected = policies[case["expected_policy"]]
            assert policy_for_status(case["status"]) is expected, case["status"]


def test_every_crawl_delay_and_sitemap_is_read() -> None:
    for case in _firm("robots"):
        if case["kind"] == "crawl_delay":
            rules = RobotsRules.parse(_robots_txt(case), user_agent=case["user_agent"])
            assert rules.crawl_delay_s == case["expected_crawl_delay_s"]
        elif case["kind"] == "sitemap_lines":
            rules = RobotsRules.parse(_robots_txt(case), user_agent="mybot")
            found = [canonicalize(value, case["base"]) for value in rules.sitemaps]
            assert found == case["expected_sitemaps"]


def test_every_sitemap_names_its_pages() -> None:
    wrong = []
    cases = list(_firm("sitemaps"))
    for case in cases:
        found = sitemap.parse((_CORPORA / case["file"]).read_bytes())
        pages = [canonicalize(entry.url, case["fetched_from"]) for entry in found.pages]
        children = [canonicalize(entry.url, case["fetched_from"]) for entry in found.children]
        expected = (case["kind"], case["expected_page_urls"], case["expected_child_sitemaps"])
        if (found.kind, pages, children) != expected:
            wrong.append((case["file"], expected, found.kind, pages, children))
    assert wrong == []
    assert len(cases) >= 16
