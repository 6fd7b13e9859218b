"""The archive of one job in one worker process: every response received, in WARC files.

A response is written where it was received (:meth:`Archive.add`), and whatever a page's commit may
point to is brought to disk before the commit (:meth:`Archive.sync`), by many pages at once. A file
that cannot be written fails the archive for good: no page of the job is committed through it any
more, and the worker gives the job's tasks back.

Not promised: that every record in a file belongs to a committed page; a page fetched again after a
crash is there twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from common.model.errors import CrawlerError
from common.model.ids import JobId, NodeId
from common.model.records import WarcRef
from worker.warc_files import WarcFile, make_durable, mend
from worker.warc_record import CONFORMS_TO, VERSION, Exchange, Packed, pack, pack_info

MAX_FILE_BYTES: Final = 1_000_000_000
_INLINE_BYTES: Final = 65_536
"""Larger bodies are compressed in a thread: the event loop must not stand still for them."""

log = structlog.get_logger()


class ArchiveFailed(CrawlerError):
    """A WARC file cannot be written; pages that refer to it must not be committed."""


class Archive:
    """Writes WARC files. To be closed."""

    def __init__(
        self,
        folder: Path,
        *,
        job: JobId,
        node: NodeId,
        facts: Mapping[str, str],
        max_file_bytes: int = MAX_FILE_BYTES,
    ) -> None:
        """Prepare; the first file is made with the first response.

        Args:
            folder: where the files go; made where there is none.
            job: part of the files' names.
            node: likewise.
            facts: of the crawl, for the first record of each file.
            max_file_bytes: a longer file is finished and another one begun.

        Raises:
            ArchiveFailed: there is no such folder, and none can be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(folder, error) from error
        self._folder = folder
        self._job = job
        self._node = node
        self._facts = {
            "software": "crawlctl",
            "format": f"WARC File Format {VERSION}",
            "conformsTo": CONFORMS_TO,
            "isPartOf": job,
            **facts,
        }
        self._max_file_bytes = max_file_bytes
        self._file: WarcFile | None = None
        self._full: list[WarcFile] = []
        """Files not written to any more, to be made durable and finished."""
        self._serial = 0
        self._written = self._durable = 0
        """Bytes, over all files."""
        self._syncing = asyncio.Lock()
        self._failure: ArchiveFailed | None = None
        self._stop_mending = threading.Event()
        self._mending = asyncio.create_task(self._mend())

    @property
    def failure(self) -> ArchiveFailed | None:
        """Why nothing can be written any more."""
        return self._failure

    async def add(self, exchange: Exchange) -> WarcRef | None:
        """Write an exchange; return where its response is, None when it could not be written."""
        if len(exchange.body) <= _INLINE_BYTES:
            packed = pack(exchange)
        else:
            packed = await asyncio.to_thread(pack, exchange)
        if self._failure is not None:
            return None
        try:
            return self._append(packed)
        except OSError as error:
            self._fail(error)
            return None

    async def sync(self) -> None:
        """Return once everything written before the call is on disk.

        Raises:
            ArchiveFailed: it is not, and will not be.
        """
        goal = self._written
        while self._failure is None and self._durable < goal:
            async with self._syncing:
                if self._durable < goal:
                    await self._sync_files()
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Finish the files, as far as they can be written."""
        self._stop_mending.set()
        if self._file is not None:
            self._full.append(self._file)
            self._file = None
        async with self._syncing:
            if self._failure is None:
                await self._sync_files()
            for file in self._full:
                file.abandon()
            self._full.clear()
        await self._mending

    def _append(self, packed: Packed) -> WarcRef:
        file = self._file
        size = len(packed.response) + len(packed.request)
        if file is not None and file.size + size > self._max_file_bytes:
            self._full.append(file)
            file = self._file = None
        if file is None:
            file = self._file = self._new_file()
        offset = file.append(packed.response + packed.request)
        self._written += size
        return WarcRef(file=file.name, offset=offset, length=len(packed.response))

    def _new_file(self) -> WarcFile:
        file = None
        while file is None:
            self._serial += 1
            # Taken by an archive of this job that was opened in the same millisecond: after a clock
            # was set back, or when the job's tasks went and came again at once.
            with suppress(FileExistsError):
                file = WarcFile(self._folder, job=self._job, node=self._node, serial=self._serial)
        info = pack_info(file.name, self._facts)
        file.append(info)
        self._written += len(info)
        return file

    async def _sync_files(self) -> None:
        upto, full = self._written, list(self._full)
        files = full if self._file is None else [*full, self._file]
        try:
            await asyncio.to_thread(make_durable, [file.descriptor() for file in files])
            for file in full:
                file.finish()
                self._full.remove(file)
        except OSError as error:
            self._fail(error)
            return
        self._durable = upto

    def _fail(self, error: OSError) -> None:
        if self._failure is None:
            self._failure = _failed(self._folder, error)
            self._failure.__cause__ = error
            log.error("warc.failed", job=self._job, reason=str(self._failure))

    async def _mend(self) -> None:
        try:
            mended = await asyncio.to_thread(mend, self._folder, self._stop_mending)
        except OSError as error:
            log.warning("warc.not_mended", folder=str(self._folder), reason=str(error))
            return
        for name in mended:
            log.info("warc.mended", file=name)


def _failed(folder: Path, error: OSError) -> ArchiveFailed:
    return ArchiveFailed(
        f"--warc-dir: {folder} cannot be written ({error.strerror or error}); make room or give "
        "another folder"
    )
