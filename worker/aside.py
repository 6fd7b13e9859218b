"""Reading of what is heavy, aside from the event loop: the worker's end of ``worker.reader``.

A page of megabytes takes seconds to read, and a thread would take the interpreter from the event
loop for most of them. In a process of its own such a page costs no other page anything, and one
that takes too long or too much, or that the parser dies of, is one failed page.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from dataclasses import replace
from itertools import chain
from typing import Final

import msgspec

from common.embedded.launch import child_environment, module_command
from common.web.html import Page
from common.web.sitemap_reader import Sitemap
from worker.reader import (
    LENGTH,
    Answer,
    Failed,
    PageRead,
    PageRequest,
    Part,
    Request,
    SitemapRead,
    SitemapRequest,
)

LIMIT_S: Final = 60.0
"""How long one page or sitemap may be read."""
LEAVE_S: Final = 2.0
"""How long the process has to end by itself."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Answer).decode


class UnreadableError(Exception):
    """A page or sitemap took too long or too much; the message is one sentence."""


class Aside:
    """A process that reads, started when it is first needed and again when it has ended."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._process: Process | None = None
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """The process that is ready to read; None while there is none or it reads."""
        return None if self._process is None else self._process.pid

    async def page(self, request: PageRequest) -> Page:
        """Read a page.

        Raises:
            UnreadableError: it takes too long, or its reader failed or died.
        """
        parts, answer = await self._read(request)
        assert isinstance(answer, PageRead)
        return replace(
            answer.page,
            links=list(chain.from_iterable(part.links for part in parts)),
            nofollow=frozenset(chain.from_iterable(part.nofollow for part in parts)),
        )

    async def sitemap(self, request: SitemapRequest) -> Sitemap:
        """Read a sitemap.

        Raises:
            UnreadableError: as for :meth:`page`.
        """
        _, answer = await self._read(request)
        assert isinstance(answer, SitemapRead)
        return answer.sitemap

    async def close(self) -> None:
        """End the process; what it reads is dropped."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(LEAVE_S):
                await process.wait()
        except TimeoutError:
            await _kill(process)

    async def _read(self, request: Request) -> tuple[list[Part], Answer]:
        async with self._lock:
            process, self._process = self._process, None
            if process is None or process.returncode is not None:
                process = await _start()
            try:
                async with asyncio.timeout(self._limit_s):
                    parts, answer = await _exchange(process, request)
            except TimeoutError as error:
                raise UnreadableError(f"it took longer than {self._limit_s:g} s to read") from error
            except (asyncio.IncompleteReadError, ConnectionError) as error:
                raise UnreadableError("the process that read it died") from error
            else:
                self._process = process
            finally:
                if self._process is None:  # an exchange that was left leaves the two out of step
                    await _kill(process)
        if isinstance(answer, Failed):
            raise UnreadableError(f"it could not be read: {answer.reason}")
        return parts, answer


async def _start() -> Process:
    command = module_command("worker.reader")
    environment = child_environment(os.environ)
    # In a session of its own, so that Ctrl-C in the worker's terminal does not reach it: the worker
    # still needs it for what is in flight.
    return await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
    )


async def _kill(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    # Not ``wait``: while nobody takes what it has written, Python 3.11 and 3.12 see no end of it.
    await process.communicate()


async def _exchange(process: Process, request: Request) -> tuple[list[Part], Answer]:
    assert process.stdin is not None
    assert process.stdout is not None
    packed = _encode(request)
    if process.stdin.is_closing():  # uvloop would take it for an error of ours
        raise BrokenPipeError
    process.stdin.writelines((LENGTH.pack(len(packed)), packed))
    await process.stdin.drain()
    parts: list[Part] = []
    while True:
        (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
        answer = _decode(await process.stdout.readexactly(length))
        if not isinstance(answer, Part):
            return parts, answer
        parts.append(answer)
