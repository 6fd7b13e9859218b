"""One exchange with a site as WARC 1.1 records: the response, and the request that led to it.

The header block is what the HTTP library gives of it: names and values byte for byte, white space
around values not. The body is decoded, as the result record's ``sha256`` has it: the bytes of the
transfer are not kept. So that the block still says what it holds, ``Content-Encoding``,
``Transfer-Encoding`` and a ``Content-Length`` that is not the body's get the prefix ``X-Crawl-``,
as Common Crawl does, and a true ``Content-Length`` is added. A body that is not all there is marked
``WARC-Truncated``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from io import BytesIO
from typing import Final, Literal, NamedTuple

from warcio.warcwriter import WARCWriter

VERSION: Final = "1.1"
CONFORMS_TO: Final = (
    "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/"
)
_PREFIX: Final = b"X-Crawl-"
_UNDONE: Final = (b"content-encoding", b"transfer-encoding")
_LENGTH: Final = b"content-length"
_COMPRESSION: Final = 6

Cut = Literal["length", "time", "disconnect", "unspecified"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its response."""

    url: str
    began: datetime
    """When the request was started, UTC."""
    ip: str | None
    """Address connected to; None through a proxy."""
    request_line: str
    request_headers: Sequence[tuple[str, str]]
    """As sent, without secrets."""
    status_line: str
    response_headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    """Decoded."""
    cut: Cut | None = None
    """Why the body is not all of it."""
    refers_to: str | None = None
    """Of a 304: the ``WARC-Date`` of the response that still holds. It becomes a revisit record."""


class Packed(NamedTuple):
    """An exchange as it stands in a file: two gzip members."""

    response: bytes
    request: bytes


class _Head:
    """A header block that the library writes as it is."""

    def __init__(self, block: bytes) -> None:
        self.headers_buff = block

    def compute_headers_buffer(self, _header_filter: object = None) -> None:
        """Nothing is left to be computed."""


NOT_MODIFIED: Final = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


def pack(exchange: Exchange) -> Packed:
    """Return the records of an exchange, compressed."""
    facts = {"WARC-Date": date_of(exchange.began)}
    if exchange.ip is not None:
        facts["WARC-IP-Address"] = exchange.ip
    cut = {"WARC-Truncated": exchange.cut} if exchange.cut else {}
    revisit = {}
    if exchange.refers_to is not None:
        revisit = {
            "WARC-Profile": NOT_MODIFIED,
            "WARC-Refers-To-Target-URI": exchange.url,
            "WARC-Refers-To-Date": exchange.refers_to,
        }
    body = b"" if revisit else exchange.body
    writer = WARCWriter(BytesIO(), gzip=False, warc_version=VERSION)
    response = writer.create_warc_record(
        exchange.url,
        "revisit" if revisit else "response",
        payload=BytesIO(body),
        length=len(body),
        warc_headers_dict={**facts, **cut, **revisit},
        http_headers=_Head(_response_head(exchange)),
    )
    concurrent = {"WARC-Concurrent-To": response.rec_headers.get_header("WARC-Record-ID")}
    request = writer.create_warc_record(
        exchange.url,
        "request",
        payload=BytesIO(),
        length=0,
        warc_headers_dict={**facts, **concurrent},
        http_headers=_Head(_request_head(exchange)),
    )
    return Packed(_member(response), _member(request))


def pack_info(file_name: str, facts: Mapping[str, str]) -> bytes:
    """Return the record a file begins with, compressed."""
    writer = WARCWriter(BytesIO(), gzip=False, warc_version=VERSION)
    return _member(writer.create_warcinfo_record(file_name, dict(facts)))


def _member(record: object) -> bytes:
    out = BytesIO()
    WARCWriter(out, gzip=False, warc_version=VERSION).write_record(record)
    # The library's own compression is three times as slow for one percent.
    compressor = zlib.compressobj(_COMPRESSION, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return compressor.compress(out.getbuffer()) + compressor.flush()


def _response_head(exchange: Exchange) -> bytes:
    length = b"%d" % len(exchange.body)
    if exchange.refers_to is not None:  # no body: what its fields say is said of the one before
        head = [name + b": " + value for name, value in exchange.response_headers]
        return _block([exchange.status_line.encode("utf-8", "surrogateescape"), *head])
    lines = [exchange.status_line.encode("utf-8", "surrogateescape")]
    is_told = False
    for name, value in exchange.response_headers:
        lower = name.lower()
        if lower in _UNDONE or (lower == _LENGTH and value.strip() != length):
            name = _PREFIX + name  # noqa: PLW2901
        is_told = is_told or name.lower() == _LENGTH
        lines.append(name + b": " + value)
    if not is_told:
        lines.append(b"Content-Length: " + length)
    return _block(lines)


def _request_head(exchange: Exchange) -> bytes:
    lines = [
        exchange.request_line,
        *(f"{name}: {value}" for name, value in exchange.request_headers),
    ]
    return _block([line.encode("utf-8", "surrogateescape") for line in lines])


def _block(lines: Sequence[bytes]) -> bytes:
    whole = (line.replace(b"\r", b" ").replace(b"\n", b" ") for line in lines)
    return b"\r\n".join(whole) + b"\r\n\r\n"


def date_of(moment: datetime) -> str:
    """Return a moment (UTC) as ``WARC-Date`` has it."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
