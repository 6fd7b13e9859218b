"""What is queued comes out as it went in."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.frontier import items
from common.frontier.items import Item
from common.model.ids import HostKey

HOST = HostKey("http://a.example")
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(
    path=_TEXT.map("/".__add__),
    depth=st.integers(0, 2**32 - 1),
    referrer=st.none() | _TEXT | _TEXT.map((HOST + "/").__add__),
    attempt=st.integers(1, 1000),
    owners=st.integers(0, 1000),
    redirects=st.integers(0, 1000),
)
def test_an_item_survives_the_queue(
    path: str, depth: int, referrer: str | None, attempt: int, owners: int, redirects: int
) -> None:
    item = Item(HOST, path, depth, referrer, attempt, owners, redirects=redirects)
    assert items.decode(HOST, items.encode(item)) == item


@pytest.mark.parametrize(
    "referrer", ["", HOST, f"{HOST}/a/b", f"{HOST}/a/b/c", f"{HOST}/a/", "https://other.example/"]
)
def test_a_referrer_is_stored_as_what_differs(referrer: str) -> None:
    item = Item(HOST, "/a/b", 1, referrer)
    raw = items.encode(item)
    assert items.decode(HOST, raw).referrer == referrer
    if referrer.startswith(HOST):
        assert HOST.encode() not in raw


def test_a_link_to_a_neighbour_costs_few_bytes() -> None:
    item = Item(HOST, "/docs/guide/part/page-17.html", 3, f"{HOST}/docs/guide/part/page-16.html")
    assert len(items.encode(item)) < len(item.path) + 20


def test_a_seed_costs_four_bytes_more_than_its_path() -> None:
    assert len(items.encode(Item(HOST, "/" + "x" * 40, 0, None))) == 41 + 4


def test_the_url_is_host_and_path() -> None:
    assert Item(HOST, "/x?y=1", 0, None).url == "http://a.example/x?y=1"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x90",
        b"\x93\x01\x02\x03",
        b"\x91\xa1a",
        b"\x9a\xa1/\x00\x00\xa0\x01\x00\x00\xc0\xc0\x00",
    ],
)
def test_other_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        items.decode(HOST, raw)
