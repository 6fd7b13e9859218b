"""Decoding piece by piece, within a bound."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.content_coding import ACCEPT_ENCODING, codings_of, open_decoder
from worker.fetch_errors import BadEncodingFault, TooLargeFault

TEXT = b"some text " * 100


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def gzipped(body: bytes) -> bytes:
    """Pack a body without the time of day, so that every run collects the same tests."""
    return gzip.compress(body, mtime=0)


def decoded(body: bytes, codings: Sequence[str], *, limit: int = 10_000, step: int = 0) -> bytes:
    decoder = open_decoder(codings, limit_bytes=limit)
    step = step or len(body)
    found = b"".join(decoder.feed(body[at : at + step]) for at in range(0, len(body), step))
    assert decoder.is_complete
    return found


@pytest.mark.parametrize("step", [0, 1, 2, 3, 17])
@pytest.mark.parametrize(
    ("body", "codings"),
    [
        (gzipped(TEXT), ["gzip"]),
        (zlib.compress(TEXT), ["deflate"]),
        (raw_deflate(TEXT), ["deflate"]),
        (gzipped(raw_deflate(TEXT)), ["deflate", "gzip"]),
        (gzipped(TEXT[:50]) + gzipped(b"") + gzipped(TEXT[50:]), ["gzip"]),
        (gzipped(TEXT) + b"\0" * 40, ["gzip"]),
        (zlib.compress(TEXT) + b"rest", ["deflate"]),
    ],
)
def test_pieces_of_any_size_lead_to_the_same_bytes(
    body: bytes, codings: list[str], step: int
) -> None:
    assert decoded(body, codings, step=step) == TEXT


@given(
    body=st.binary(max_size=5_000),
    layers=st.lists(st.sampled_from(["gzip", "deflate"]), min_size=1, max_size=3),
    step=st.integers(1, 600),
)
def test_decoding_undoes_encoding(body: bytes, layers: list[str], step: int) -> None:
    coded = body
    for layer in layers:
        coded = gzip.compress(coded) if layer == "gzip" else zlib.compress(coded)

    assert decoded(coded, layers, step=step) == body


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw_deflate])
def test_no_call_gives_more_than_a_byte_over_the_limit(pack: object) -> None:
    assert callable(pack)
    decoder = open_decoder(["gzip" if pack is gzip.compress else "deflate"], limit_bytes=4096)

    assert len(decoder.feed(pack(bytes(10_000_000)))) == 4097


def test_inner_layer_over_the_limit_is_refused() -> None:
    decoder = open_decoder(["gzip", "gzip"], limit_bytes=4096)

    with pytest.raises(TooLargeFault, match="4096"):
        decoder.feed(gzip.compress(bytes(1_000_000)))


def test_unfinished_body_is_not_complete() -> None:
    decoder = open_decoder(["gzip"], limit_bytes=10_000)

    assert TEXT.startswith(decoder.feed(gzip.compress(TEXT)[:-1]))
    assert not decoder.is_complete


@pytest.mark.parametrize("body", [b"<html>", b"\x1f\x8b\xff\xff\xff\xff\xff\xff\xff\xff\xff"])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_other_bytes_are_refused(body: bytes, coding: str) -> None:
    with pytest.raises(BadEncodingFault):
        open_decoder([coding], limit_bytes=100).feed(body)


@pytest.mark.parametrize("layers", [1, 2])
def test_many_members_take_about_as_long_as_one(layers: int) -> None:
    body = gzip.compress(b"x" * 16_000, 9 if layers == 1 else 0, mtime=0) * 1000
    for _ in range(layers - 1):
        body = gzipped(body)
    decoder = open_decoder(["gzip"] * layers, limit_bytes=17_000_000)
    begin = time.process_time()
    found = decoder.feed(body)
    assert time.process_time() - begin < 1.5
    assert found == b"x" * 16_000_000
    assert decoder.is_complete


def test_endless_row_of_empty_members_is_refused() -> None:
    with pytest.raises(BadEncodingFault, match="members"):
        open_decoder(["gzip"], limit_bytes=100).feed(gzip.compress(b"") * 2_000)


@pytest.mark.parametrize(
    ("values", "codings"),
    [
        (["gzip"], ("gzip",)),
        (["GZip , deflate"], ("gzip", "deflate")),
        (["deflate", "x-gzip"], ("deflate", "gzip")),
        (["identity"], ()),
        (["none, utf-8,"], ()),
        ([""], ()),
    ],
)
def test_codings_are_read_in_order(values: list[str], codings: tuple[str, ...]) -> None:
    assert codings_of(values) == codings


@pytest.mark.parametrize("value", ["compress", "x-compress", "gzip, exi", "gzip," * 5])
def test_codings_that_cannot_be_undone_are_refused(value: str) -> None:
    with pytest.raises(BadEncodingFault):
        codings_of([value])


def test_what_is_asked_for_begins_with_what_is_always_there() -> None:
    assert ACCEPT_ENCODING.startswith("gzip, deflate")
