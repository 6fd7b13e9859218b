"""The archive: what it points to is there, files end whole, and what cannot be written is said."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest

from common.model.ids import JobId, NodeId
from common.model.records import WarcRef
from tests.support.warcs import Record, read, read_all
from tests.unit.cli.calling import checkout_environment
from worker import warc
from worker.warc import Archive, ArchiveFailed
from worker.warc_files import MARK, WarcFile, make_durable, mend
from worker.warc_record import Exchange

Opened = Callable[..., Archive]

WRITER = """
import asyncio, sys
from pathlib import Path
from unittest.mock import Mock
from common.model.ids import JobId, NodeId
from tests.unit.worker.test_warc import exchange
from worker.warc import Archive

async def main():
    archive = Archive(Path(sys.argv[1]), job=JobId("j"), node=NodeId("n"), facts={},
                      max_file_bytes=200_000)
    number = 0
    while True:
        refs = [await archive.add(exchange(number + one, size=20_000)) for one in range(4)]
        await archive.sync()
        number += 4
        for ref in refs:
            print(ref.file, ref.offset, ref.length, flush=True)

asyncio.run(main())
"""


def exchange(number: int, *, size: int = 100) -> Exchange:
    return Exchange(
        url=f"http://h.example/{number}",
        began=datetime.now(UTC),
        ip=None,
        request_line=f"GET /{number} HTTP/1.1",
        request_headers=[("Host", "h.example")],
        status_line="HTTP/1.1 200 OK",
        response_headers=[],
        body=os.urandom(size),
    )


@pytest.fixture
async def archive(tmp_path: Path) -> AsyncIterator[Opened]:
    opened: list[Archive] = []

    def make(**options: int) -> Archive:
        one = Archive(tmp_path, job=JobId("j"), node=NodeId("n"), facts={}, **options)
        opened.append(one)
        return one

    yield make
    for one in opened:
        await one.close()


def at(records: list[Record], ref: WarcRef) -> Record:
    (found,) = [one for one in records if (one.file, one.offset) == (ref.file, ref.offset)]
    assert ("response", ref.length) == (found.kind, found.length)
    return found


def marks(folder: Path) -> list[str]:
    return [path.name for path in folder.glob(f"*{MARK}")]


async def test_references_lead_to_responses_and_files_are_rotated(
    archive: Opened, tmp_path: Path
) -> None:
    one = archive(max_file_bytes=50_000)
    refs = []
    for number in range(20):
        size = 100_000 if number == 7 else 9_000  # the large one is compressed in a thread
        refs.append(await one.add(exchange(number, size=size)))
    await one.sync()
    await one.close()
    records = read_all(tmp_path)
    for number, ref in enumerate(refs):
        assert ref is not None
        assert f"http://h.example/{number}" == at(records, ref).url
    files = {ref.file for ref in refs if ref}
    assert len(files) > 3
    first = [record.kind for record in records if record.offset == 0]
    assert ["warcinfo"] * len(files) == first
    assert all((tmp_path / name).stat().st_size <= 50_000 for name in files - {refs[7].file})  # type: ignore[union-attr]
    assert [] == marks(tmp_path)


async def test_two_archives_never_share_a_file(
    archive: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Mock(wraps=datetime)
    clock.now.return_value = datetime(2026, 1, 1, tzinfo=UTC)
    monkeypatch.setattr("worker.warc_files.datetime", clock)  # the same millisecond
    pair = [archive(), archive()]
    refs = [await one.add(exchange(1)) for one in pair]
    assert 2 == len({ref.file for ref in refs if ref})
    assert 2 == len(marks(tmp_path)), "both are being written"
    assert [] == mend(tmp_path, threading.Event())


async def test_what_cannot_be_written_is_never_said_to_be_durable(
    archive: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = archive()
    kept = await one.add(exchange(1))
    await one.sync()
    real = WarcFile.append

    def full(file: WarcFile, data: bytes) -> int:
        real(file, data[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(WarcFile, "append", full)
        assert await one.add(exchange(2)) is None
    assert await one.add(exchange(3)) is None, "nothing follows a torn record"
    with pytest.raises(ArchiveFailed, match="No space left"):
        await one.sync()
    await one.close()
    assert 1 == len(marks(tmp_path))
    await archive().close()  # the next one on the folder; it may be told to stop at once
    mend(tmp_path, threading.Event())
    assert kept is not None
    assert "http://h.example/1" == at(read_all(tmp_path), kept).url
    assert [] == marks(tmp_path)


async def test_a_disk_that_fails_to_sync_fails_the_archive(
    archive: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(descriptors: list[int]) -> None:
        make_durable(descriptors)
        raise OSError(errno.EIO, "Input/output error")

    one = archive()
    await one.add(exchange(1))
    monkeypatch.setattr(warc, "make_durable", broken)
    with pytest.raises(ArchiveFailed, match="Input/output"):
        await one.sync()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveFailed, match="--warc-dir"):
        Archive(tmp_path / "file" / "x", job=JobId("j"), node=NodeId("n"), facts={})


@pytest.mark.parametrize("left", ["1 byte", "half", "all but 1", "garbage", "zeros"])
async def test_a_torn_tail_is_cut_behind_the_last_whole_record(
    archive: Opened, tmp_path: Path, left: str
) -> None:
    one = archive()
    first, second = await one.add(exchange(1)), await one.add(exchange(2, size=5000))
    assert first is not None
    assert second is not None
    await one.close()
    path = tmp_path / first.file
    whole = path.read_bytes()
    tail = whole[second.offset : second.offset + second.length]
    torn = {
        "1 byte": tail[:1],
        "half": tail[: len(tail) // 2],
        "all but 1": tail[:-1],
        "garbage": b"not gzip at all",
        "zeros": bytes(4096),
    }
    path.write_bytes(whole[: second.offset] + torn[left])
    (tmp_path / (path.name + MARK)).touch()
    assert [path.name] == mend(tmp_path, threading.Event())
    assert whole[: second.offset] == path.read_bytes()
    assert "http://h.example/1" == at(read(path), first).url
    assert [] == marks(tmp_path)


@pytest.mark.parametrize("round_", range(3))
def test_what_was_durable_when_the_writer_was_killed_can_be_read(
    tmp_path: Path, round_: int
) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        env=checkout_environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(30 + 17 * round_)]
        writer.send_signal(signal.SIGKILL)
        lines += writer.stdout.readlines()
    assert 1 <= len(marks(tmp_path))
    mend(tmp_path, threading.Event())
    assert [] == marks(tmp_path)
    records = read_all(tmp_path)
    for number, line in enumerate(line for line in lines if line.endswith("\n")):
        name, offset, length = line.split()
        found = at(records, WarcRef(file=name, offset=int(offset), length=int(length)))
        assert f"http://h.example/{number}" == found.url
