"""Encodings: labels, the order of the signs, and that every codec exists."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.web import charset


def test_every_encoding_of_the_table_can_be_decoded() -> None:
    for known in {*charset._BY_LABEL.values()}:
        assert codecs.lookup(known.codec)
        assert charset.by_label(known.name) == known
    assert len(charset._BY_LABEL) >= 220


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b"\xef\xbb\xbfx", "text/html; charset=koi8-r", "utf-8"),
        (b"<meta charset=koi8-r>", "text/html; charset=latin1", "windows-1252"),
        (b"<meta charset=koi8-r>", "text/html; charset=bogus", "koi8-r"),
        (b"<meta charset=koi8-r>", "text/html", "koi8-r"),
        (b"<!-- <meta charset=koi8-r> -->\xff", None, "windows-1252"),
        (b"\xc3\xa9", None, "utf-8"),
        (b"\xe9", None, "windows-1252"),
        (b"caf\xe9", None, "windows-1252"),
        (b"caf\xe9\xc3", None, "windows-1252"),
        (b"caf\xc3\xa9 \xe2\x98", None, "utf-8"),
        (b"x" * 5000 + b"\xf0\x9d\x92", None, "utf-8"),
        (b"x" * 5000 + b"\xe9x", None, "windows-1252"),
        (b"", None, "utf-8"),
        (b"x" * 5000 + b"<meta charset=koi8-r>\xff", None, "koi8-r"),
        (b"x" * 50_000 + b"<meta charset=koi8-r>\xff", None, "windows-1252"),
        (b'<?xml version="1.0" encoding="koi8-r"?>\xff', None, "koi8-r"),
        (b"<meta charset=utf-16>", None, "utf-8"),
        (b'<meta content="a charset b charset=koi8-r" http-equiv=content-type>', None, "koi8-r"),
        (b'<meta charset="koi8-r', None, "utf-8"),
    ],
)
def test_the_first_sign_decides(body: bytes, content_type: str | None, expected: str) -> None:
    assert charset.sniff(body, content_type).name == expected


@given(st.binary(max_size=200), st.one_of(st.none(), st.text(max_size=60)))
def test_nothing_raises(body: bytes, content_type: str | None) -> None:
    charset.sniff(b"<meta charset" + body, content_type)
