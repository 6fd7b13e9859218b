"""Canonical URLs: one spelling a page, and nothing that can be thrown at it hurts."""

from __future__ import annotations

import can_ada
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.model.errors import UsageError
from common.web.url import (
    MAX_URL_BYTES,
    Base,
    authority_of,
    canonicalize,
    document_base,
    header_reference,
    host_key,
    lacks_scheme,
    parse_seed,
    path_of,
)

_ANY_CHAR = st.characters(codec=None)
_URLISH = st.text(
    alphabet=st.one_of(st.sampled_from("/:?#@%.[]\\&=;25eEfF7\t\n\0 ahtps\udcff\xe9"), _ANY_CHAR),
    max_size=60,
)
_HTTP = st.builds("{}{}".format, st.sampled_from(["http://h/", "https://h:8443/a/", ""]), _URLISH)


@given(_HTTP, st.one_of(st.none(), _HTTP))
@example("http://h/%%32%65", None)
@example("http://h/%2%45/..", None)
@example("\ud800", "http://h/")
@example("http://u:p@h/@", None)
def test_canonical_form_is_stable_and_nothing_raises(raw: str, base: str | None) -> None:
    url = canonicalize(raw, base)
    if url is not None:
        assert canonicalize(url) == url
        assert can_ada.parse(url).href == url
        assert url.isascii()
        assert "#" not in url


@given(_HTTP)
def test_canonical_url_is_key_and_path_put_together(raw: str) -> None:
    url = canonicalize(raw)
    if url is not None:
        assert host_key(url) + path_of(url) == url
        assert path_of(url).startswith("/")
        assert host_key(url).partition("://")[2] == authority_of(url)


@given(_URLISH)
def test_a_base_parsed_once_resolves_like_one_parsed_each_time(raw: str) -> None:
    base = "http://h.example/a/b?c"
    assert Base(base).resolve(raw) == canonicalize(raw, base)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("HTTP://User:Pw@EXAMPLE.org:80/a/../b#frag", "http://example.org/b"),
        ("http://user@h.example/a@b", "http://h.example/a@b"),
        ("http://h/%7eJane/%c3%a9", "http://h/~Jane/%C3%A9"),
        ("http://h/%2f%3F", "http://h/%2F%3F"),
        ("http://h/%zz%7e%c3", "http://h/%zz%7E%C3"),
        ("http://h?", "http://h/?"),
        ("http://h//a//", "http://h//a//"),
        ("http://[0:0:0:0:0:0:0:1]:8080/y", "http://[::1]:8080/y"),
        ("http://h./", "http://h./"),
        ("http://h/\ud800", "http://h/%EF%BF%BD"),
        ("http://h/\ud83d\ude00", "http://h/%F0%9F%98%80"),
        ("mailto:a@b", None),
        ("ftp://h/", None),
        ("http://", None),
        ("http://[bad/", None),
        ("", None),
    ],
)
def test_canonical_form(raw: str, expected: str | None) -> None:
    assert canonicalize(raw) == expected


def test_a_url_over_the_limit_is_none_and_its_fragment_does_not_count() -> None:
    fits = "http://h/" + "a" * (MAX_URL_BYTES - len("http://h/"))
    assert canonicalize(fits + "#" + "f" * 2_000_000) == fits
    assert canonicalize(fits + "a") is None


def test_an_invalid_base_resolves_nothing() -> None:
    assert canonicalize("x", "no base") is None
    assert canonicalize("x", "\ud800") is None


def test_default_ports_are_not_part_of_the_authority() -> None:
    assert authority_of("https://h.example:8443/a") == "h.example:8443"
    assert authority_of("https://h.example/a") == "h.example"
    assert authority_of("http://h/") == "h"
    assert host_key("https://h/") == "https://h"
    assert path_of("https://h/?q") == "/?q"


@pytest.mark.parametrize(
    ("base_href", "expected"),
    [
        ("b/", "http://h/d/b/"),
        ("b/#/c/", "http://h/d/b/"),
        ("", "http://h/d/p?q"),
        ("http://[bad", "http://h/d/p?q"),
        ("javascript:1", "http://h/d/p?q"),
        ("ftp://o/x/", "ftp://o/x/"),
    ],
)
def test_document_base(base_href: str, expected: str) -> None:
    assert document_base("http://h/d/p?q", base_href) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("example.org", "http://example.org/"),
        ("  example.org:8080/x ", "http://example.org:8080/x"),
        ("localhost:8080", "http://localhost:8080/"),
        ("//example.org/x", "http://example.org/x"),
        ("[::1]:8080", "http://[::1]:8080/"),
        ("HTTPS://example.org/#top", "https://example.org/"),
    ],
)
def test_a_seed_may_be_written_short(text: str, expected: str) -> None:
    assert parse_seed(text) == expected
    assert lacks_scheme(text) == ("http" not in text.lower())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no host name"),
        ("/path", "no host name"),
        ("mailto:a@b.example", "scheme 'mailto' cannot be crawled"),
        ("ftp://h/", "scheme 'ftp' cannot be crawled"),
        ("two words", "not a valid URL"),
        ("http://", "not a valid URL"),
        ("h/" + "x" * 9000, "longer than 8192 bytes"),
    ],
)
def test_a_bad_seed_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        parse_seed(text)
    assert len(str(caught.value)) < 250


@given(st.text(alphabet=_ANY_CHAR, max_size=40))
def test_a_seed_is_a_canonical_url_or_refused(text: str) -> None:
    try:
        url = parse_seed(text)
    except UsageError:
        return
    assert canonicalize(url) == url


def test_bytes_of_a_header_are_encoded_as_they_are() -> None:
    """Reading Location as Latin-1 and encoding it again gave a URL the server does not know."""
    assert header_reference(b"/fa/\xd8\xa7%26\xff") == "/fa/%D8%A7%26%FF"
    assert canonicalize(header_reference(b"/A_%26_B"), "http://h/A_&_B") == "http://h/A_%26_B"
