"""Records are WARC 1.1 as two independent readers understand it, whatever a site sends."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.warcs import Record, read
from worker.warc_record import Exchange, pack, pack_info

BODY = "<p>grüße</p>".encode()


def exchange(**facts: Any) -> Exchange:
    values: dict[str, Any] = {
        "url": "http://h.example/p?q=1",
        "began": datetime(2026, 11, 30, 8, 15, 30, 123_456, tzinfo=UTC),
        "ip": "192.0.2.7",
        "request_line": "GET /p?q=1 HTTP/1.1",
        "request_headers": [("Host", "h.example"), ("Accept", "*/*")],
        "status_line": "HTTP/1.1 200 OK",
        "response_headers": [(b"Content-Type", b"text/html")],
        "body": BODY,
    }
    return Exchange(**values | facts)


def written(tmp_path: Path, one: Exchange) -> tuple[Record, Record]:
    packed = pack(one)
    path = tmp_path / "one.warc.gz"
    path.write_bytes(packed.response + packed.request)
    response, request = read(path)
    assert (0, len(packed.response)) == (response.offset, response.length)
    return response, request


def test_a_pair_says_what_was_asked_and_answered(tmp_path: Path) -> None:
    response, request = written(tmp_path, exchange())
    assert ("response", "request") == (response.kind, request.kind)
    assert response.url == request.url == "http://h.example/p?q=1"
    assert "2026-11-30T08:15:30.123Z" == response.headers["WARC-Date"]
    assert "192.0.2.7" == response.headers["WARC-IP-Address"] == request.headers["WARC-IP-Address"]
    assert response.headers["WARC-Record-ID"] == request.headers["WARC-Concurrent-To"]
    assert "application/http; msgtype=response" == response.headers["Content-Type"]
    assert response.headers["WARC-Payload-Digest"].startswith("sha1:")
    assert ("HTTP/1.1 200 OK", BODY) == (response.status, response.body)
    assert ["h.example"] == request.field("Host")
    assert "WARC-Truncated" not in response.headers


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (
            [(b"Content-Encoding", b"gzip"), (b"Content-Length", b"31")],
            [("X-Crawl-Content-Encoding", "gzip"), ("X-Crawl-Content-Length", "31")],
        ),
        (
            [(b"TRANSFER-ENCODING", b"chunked")],
            [("X-Crawl-TRANSFER-ENCODING", "chunked")],
        ),
        ([(b"X-A", b"1"), (b"x-a", b"2")], [("X-A", "1"), ("x-a", "2")]),
    ],
)
def test_the_head_is_kept_but_for_what_decoding_made_untrue(
    tmp_path: Path, sent: list[tuple[bytes, bytes]], kept: list[tuple[str, str]]
) -> None:
    response, _ = written(tmp_path, exchange(response_headers=sent))
    assert [*kept, ("Content-Length", str(len(BODY)))] == response.http


def test_a_length_that_is_true_stays_as_it_was(tmp_path: Path) -> None:
    head = [(b"content-length", b"%d" % len(BODY))]
    response, _ = written(tmp_path, exchange(response_headers=head))
    assert [("content-length", str(len(BODY)))] == response.http


@pytest.mark.parametrize(
    ("name", "value"), [(b"X-Latin", b"caf\xe9"), (b"X-Null", b"a\0b"), (b"X-Line", b"a\r\nB: c")]
)
def test_hostile_head_fields_stay_within_their_line(
    tmp_path: Path, name: bytes, value: bytes
) -> None:
    response, _ = written(tmp_path, exchange(response_headers=[(name, value)]))
    assert [name.decode(), "Content-Length"] == [field for field, _ in response.http]
    assert BODY == response.body


@pytest.mark.parametrize("body", [b"", b"\0" * 200_000, b"\r\n\r\nWARC/1.1\r\n\r\n"])
def test_any_body_comes_back(tmp_path: Path, body: bytes) -> None:
    response, _ = written(tmp_path, exchange(body=body))
    assert body == response.body


def test_a_body_that_is_not_whole_is_marked(tmp_path: Path) -> None:
    response, request = written(tmp_path, exchange(cut="length"))
    assert "length" == response.headers["WARC-Truncated"]
    assert "WARC-Truncated" not in request.headers


def test_a_file_begins_with_what_made_it(tmp_path: Path) -> None:
    path = tmp_path / "info.warc.gz"
    path.write_bytes(pack_info(path.name, {"robots": "obey"}))
    (info,) = read(path)
    assert ("warcinfo", path.name) == (info.kind, info.headers["WARC-Filename"])
    assert b"robots: obey\r\n" in info.body


def test_a_304_refers_to_the_response_that_still_holds(tmp_path: Path) -> None:
    since = "2026-11-29T08:00:00.000Z"
    head = [(b"ETag", b'"1"'), (b"Content-Length", b"31")]
    one = exchange(
        status_line="HTTP/1.1 304 Not Modified", response_headers=head, refers_to=since,
        body=b"bytes that do not belong there",
    )  # fmt: skip
    revisit, request = written(tmp_path, one)
    assert ("revisit", "request") == (revisit.kind, request.kind)
    assert revisit.headers["WARC-Profile"].endswith("/warc/1.1/revisit/server-not-modified")
    assert (since, one.url) == (
        revisit.headers["WARC-Refers-To-Date"],
        revisit.headers["WARC-Refers-To-Target-URI"],
    )
    assert ("HTTP/1.1 304 Not Modified", b"") == (revisit.status, revisit.body)
    assert ['"1"'] == revisit.field("ETag")
    assert ["31"] == revisit.field("Content-Length"), "of the page, as the server says"
