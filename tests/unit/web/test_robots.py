"""robots.txt: groups, longest match, bounds."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.web.robots import MAX_BYTES, MAX_CRAWL_DELAY_S, RobotsPolicy, RobotsRules, Verdict
from common.web.robots import policy_for_status as policy


def _rules(text: str | bytes, agent: str = "crawlctl/0.1 (+http://h)") -> RobotsRules:
    return RobotsRules.parse(text if isinstance(text, bytes) else text.encode(), user_agent=agent)


def test_a_verdict_names_the_line_that_decides() -> None:
    rules = _rules("User-agent: *\nDisallow: /private # not this\nAllow: /private/open")
    assert rules.verdict("http://h/private/x") == Verdict(False, "Disallow: /private")
    assert rules.verdict("http://h/private/open") == Verdict(True, "Allow: /private/open")
    assert rules.verdict("http://h/") == Verdict(True, None)


def test_our_own_group_replaces_that_for_everyone() -> None:
    text = "User-agent: *\nDisallow: /\nCrawl-delay: 9\n\nUser-Agent: CrawlCtl\nDisallow: /x\n"
    assert _rules(text).verdict("http://h/a").allowed
    assert not _rules(text).verdict("http://h/x").allowed
    assert _rules(text).crawl_delay_s is None
    assert not _rules(text, agent="other").verdict("http://h/a").allowed
    assert not _rules(text, agent="crawl").verdict("http://h/a").allowed


def test_a_crawl_delay_does_not_split_a_group() -> None:
    text = "User-agent: crawlctl\nCrawl-delay: 2\n\nUser-agent: other\nDisallow: /\n"
    assert _rules(text).verdict("http://h/x") == Verdict(False, "Disallow: /")
    assert _rules(text).crawl_delay_s == 2


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("Crawl-delay: 1.5", 1.5),
        ("Crawl-delay: 1\nCrawl-delay: 3", 3),
        ("Crawl-delay: -1", None),
        ("Crawl-delay: nan", None),
        ("Crawl-delay: 1e999", None),
        ("Crawl-delay: 1e9", MAX_CRAWL_DELAY_S),
        ("Crawl-delay: soon", None),
    ],
)
def test_crawl_delay(lines: str, expected: float | None) -> None:
    assert _rules("User-agent: *\n" + lines).crawl_delay_s == expected


@pytest.mark.parametrize(
    ("rule", "path", "is_allowed"),
    [
        ("/a*c$", "/abc", False),
        ("/a*c$", "/abcd", True),
        ("/a*b*c", "/axbxcx", False),
        ("/*.php$", "/x.php?y", True),
        ("/x$", "/x", False),
        ("/x$", "/xy", True),
        ("*x", "/ax", False),
        ("/a%2Ab", "/a*b", False),
        ("/a$b", "/a$b", False),
        ("/%7Eu", "/~u", False),
        ("/a%2fb", "/a%2Fb", False),
        ("/a%2Fb", "/a/b", True),
        ("/é", "/%C3%A9", False),
        ("x", "/x", True),
        ("**", "/", False),
    ],
)
def test_patterns(rule: str, path: str, is_allowed: bool) -> None:
    rules = _rules(f"User-agent: *\nDisallow: {rule}")
    assert rules.verdict("http://h" + path).allowed is is_allowed


def test_bytes_that_are_no_utf_8_still_mean_themselves() -> None:
    rules = _rules(b"User-agent: *\nDisallow: /caf\xe9")
    assert rules.verdict("http://h/caf%E9") == Verdict(False, "Disallow: /caf\ufffd")


def test_allow_wins_a_tie_of_a_plain_and_a_wildcard_rule() -> None:
    for one, other in (("/a*", "/ab"), ("/ab", "/a*")):
        rules = _rules(f"User-agent: *\nAllow: {one}\nDisallow: {other}")
        assert rules.verdict("http://h/ab").allowed


def test_robots_txt_itself_is_always_allowed() -> None:
    rules = _rules("User-agent: *\nDisallow: /")
    assert rules.verdict("http://h/robots.txt").allowed
    assert not rules.verdict("http://h/robots.txt.bak").allowed


def test_sitemaps_belong_to_nobody_and_are_distinct() -> None:
    rules = _rules("Sitemap: http://h/1\nUser-agent: x\nsitemap: /2\nDisallow: /\nSitemap: /2")
    assert rules.sitemaps == ("http://h/1", "/2")
    assert RobotsRules.allow_all().sitemaps == ()
    assert RobotsRules.allow_all().verdict("http://h/x") == Verdict(True, None)


def test_a_line_cut_by_the_size_limit_is_not_read() -> None:
    start = b"User-agent: *\nDisallow: /early\n"
    filler = b"#" * (MAX_BYTES - len(start) - len("\nDisallow: /")) + b"\n"
    rules = _rules(start + filler + b"Disallow: /late\n")
    assert not rules.verdict("http://h/early").allowed
    assert rules.verdict("http://h/other").allowed


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, RobotsPolicy.PARSE),
        (301, RobotsPolicy.FOLLOW),
        (403, RobotsPolicy.ALLOW_ALL),
        (404, RobotsPolicy.ALLOW_ALL),
        (429, RobotsPolicy.UNAVAILABLE),
        (503, RobotsPolicy.UNAVAILABLE),
        (999, RobotsPolicy.UNAVAILABLE),
    ],
)
def test_policy_for_status(status: int, expected: RobotsPolicy) -> None:
    assert policy(status) is expected


@given(st.binary(max_size=300), st.text(max_size=20))
def test_nothing_raises(body: bytes, agent: str) -> None:
    rules = RobotsRules.parse(b"User-agent: *\nDisallow: " + body, user_agent=agent)
    rules.verdict("http://h/a/b?c%20")
    rules.verdict("http://h/")


@pytest.mark.parametrize(
    "line",
    ["Disallow: /*a*a*a*a*a*a*b$\n", "Disallow: {n}*x\n", "Disallow: /{n}/y\n", "Allow: *{n}$\n"],
)
def test_a_hostile_file_is_read_and_asked_in_bounded_time(line: str) -> None:
    text = "User-agent: *\n" + "".join(line.format(n=number) for number in range(30_000))
    begin = time.process_time()
    rules = _rules(text)
    assert time.process_time() - begin < 3
    begin = time.process_time()
    rules.verdict("http://h/" + "a" * 8000)
    assert time.process_time() - begin < 0.5
