"""Scope keys and the user's patterns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.errors import UsageError
from common.web.scope import (
    MAX_PREFIXES,
    ScopeKind,
    UrlRules,
    domain_of,
    scope_keys,
    seed_scope_key,
)
from common.web.url import canonicalize, host_key

_KINDS: tuple[ScopeKind, ...] = ("host", "domain", "prefix", "any")


@pytest.mark.parametrize(
    ("url", "kind", "expected"),
    [
        ("http://h.example/a", "host", ("h.example",)),
        ("https://h.example/a", "host", ("h.example",)),
        ("https://h.example:80/", "host", ("h.example:80",)),
        ("http://[::1]:8080/", "host", ("[::1]:8080",)),
        ("http://a.b.example.co.uk:81/", "domain", ("example.co.uk",)),
        ("http://me.github.io/", "domain", ("me.github.io",)),
        ("http://co.uk/", "domain", ("co.uk",)),
        ("http://www.example.org./", "domain", ("example.org",)),
        ("http://localhost:8080/", "domain", ("localhost",)),
        ("http://127.0.0.1:8080/", "domain", ("127.0.0.1",)),
        ("http://[::1]:8080/", "domain", ("[::1]",)),
        ("http://h/", "prefix", ("h/",)),
        ("https://h:8443/a/b/c?d/e", "prefix", ("h:8443/", "h:8443/a/", "h:8443/a/b/")),
        ("http://h//a/", "prefix", ("h/", "h//", "h//a/")),
        ("http://h/a", "any", ()),
    ],
)
def test_scope_keys(url: str, kind: ScopeKind, expected: tuple[str, ...]) -> None:
    assert scope_keys(url, kind) == expected


def test_a_host_key_has_the_domain_of_its_urls() -> None:
    assert domain_of(host_key("https://a.b.example.co.uk:81/x") + "/") == "example.co.uk"


def test_a_seed_gives_its_directory_and_links_below_it_share_it() -> None:
    key = seed_scope_key("http://h/docs/start.html", "prefix")
    assert key == "h/docs/"
    assert key in scope_keys("https://h/docs/a/b.html", "prefix")
    assert key not in scope_keys("http://h/docs", "prefix")
    assert seed_scope_key("http://h/", "any") is None
    assert seed_scope_key("http://h/x", "host") == "h"


def test_a_path_deeper_than_all_others_has_bounded_keys() -> None:
    deep = "http://h/" + "a/" * 4000
    assert len(scope_keys(deep, "prefix")) == MAX_PREFIXES
    assert seed_scope_key(deep, "prefix") in scope_keys(deep + "b", "prefix")


@given(st.text(max_size=30), st.sampled_from(_KINDS))
def test_every_url_is_in_the_scope_it_gives(text: str, kind: ScopeKind) -> None:
    url = canonicalize(text, "http://h.example/a/")
    if url is not None:
        seed_key = seed_scope_key(url, kind)
        assert (seed_key is None) == (kind == "any")
        assert seed_key is None or seed_key in scope_keys(url, kind)


def test_deny_wins_and_allow_must_match_where_given() -> None:
    rules = UrlRules(allow=[r"/docs/", r"\.html$"], deny=[r"private"])
    assert rules.refusal("http://h/docs/x") is None
    assert rules.refusal("http://h/x.html") is None
    assert rules.refusal("http://h/docs/private") == "deny: private"
    assert rules.refusal("http://h/x") == "allow: none matched"
    assert UrlRules().refusal("http://h/x") is None


def test_a_bad_pattern_names_its_option_and_place() -> None:
    with pytest.raises(UsageError, match=r"--deny: 'a\(b' is not a regular .* at position 1"):
        UrlRules(deny=["ok", "a(b"])
    with pytest.raises(UsageError, match="--allow"):
        UrlRules(allow=["x{99999999999999999999}"])
