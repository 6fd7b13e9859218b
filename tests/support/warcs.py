"""WARC files as two independent readers see them, digests verified by both."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

from fastwarc.warc import ArchiveIterator as FastIterator
from warcio.archiveiterator import ArchiveIterator as PlainIterator


class Record(NamedTuple):
    """One record."""

    file: str
    offset: int
    length: int
    kind: str
    url: str | None
    headers: dict[str, str]
    """Of the record."""
    status: str | None
    http: list[tuple[str, str]]
    body: bytes

    @property
    def sha256(self) -> str | None:
        return hashlib.sha256(self.body).hexdigest() if self.body else None

    def field(self, name: str) -> list[str]:
        """Return the values of a field of the HTTP head."""
        return [value for field, value in self.http if field.lower() == name.lower()]


def read(path: Path) -> list[Record]:
    """Return all records of a file; fails where one reader finds fault or they disagree."""
    records = _by_warcio(path)
    assert _by_fastwarc(path) == [(one.offset, one.kind, one.url, one.body) for one in records]
    return records


def read_all(folder: Path) -> list[Record]:
    """Return the records of every file of a folder."""
    return [record for path in sorted(folder.glob("*.warc.gz")) for record in read(path)]


def _by_warcio(path: Path) -> list[Record]:
    records = []
    with path.open("rb") as file:
        reader = PlainIterator(file, check_digests="raise")
        for record in reader:
            body = record.content_stream().read()
            offset = reader.get_record_offset()
            head = record.http_headers
            records.append(
                Record(
                    path.name,
                    offset,
                    reader.get_record_length(),
                    record.rec_type,
                    record.rec_headers.get_header("WARC-Target-URI"),
                    dict(record.rec_headers.headers),
                    f"{head.protocol} {head.statusline}" if head else None,
                    list(head.headers) if head else [],
                    body,
                )
            )
    return records


def _by_fastwarc(path: Path) -> list[tuple[int, str, str | None, bytes]]:
    records = []
    with path.open("rb") as file:
        for record in FastIterator(file, parse_http=False):
            assert record.verify_block_digest(), record.headers
            assert record.headers.status_line == "WARC/1.1"
            kind = record.headers["WARC-Type"]
            if kind == "warcinfo":
                records.append((record.stream_pos, kind, None, record.reader.read()))
                continue
            record.parse_http()
            # A revisit has no payload, and its digest would be that of the page it refers to.
            assert kind == "revisit" or record.verify_payload_digest(), record.headers
            url = record.headers.get("WARC-Target-URI")
            records.append((record.stream_pos, kind, url, record.reader.read()))
    return records
