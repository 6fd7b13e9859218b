"""Asks a server whether it is up, and whether it is *ours*: a few bytes over a socket, no client.

A port that was free may have been taken by somebody else's server, even by another crawl's. Talking
to that one would be worse than not starting, so identity is part of the answer: the data server
accepts our password, etcd's only member has our name.
"""

from __future__ import annotations

import asyncio
import json
from enum import Enum, auto
from typing import Any, Final

from common.embedded.servers import HOST, member_name

_TIMEOUT_S: Final = 1.0
_MOST_BYTES: Final = 65_536


class Answer(Enum):
    """What a probe found."""

    READY = auto()
    LOADING = auto()
    """Ours and alive, still reading its data."""
    FOREIGN = auto()
    """Somebody else's server."""
    NONE = auto()


async def probe_etcd(port: int, secret: str) -> Answer:
    """Ask etcd on this port."""
    health = await _http(port, b"GET /health HTTP/1.0\r\n\r\n")
    if health is None or health.get("health") != "true":
        # Before it has elected itself it answers this, whoever it is.
        return Answer.NONE
    listed = await _http(
        port, b"POST /v3/cluster/member/list HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}"
    )
    if listed is None:
        return Answer.NONE
    names = [member.get("name") for member in listed.get("members", ())]
    return Answer.READY if names == [member_name(secret)] else Answer.FOREIGN


async def probe_redis(port: int, secret: str) -> Answer:
    """Ask the data server on this port."""
    reply = await _exchange(port, f"AUTH {secret}\r\nPING\r\nQUIT\r\n".encode())
    lines = reply.split(b"\r\n")
    if lines[0] != b"+OK":
        return Answer.FOREIGN if reply else Answer.NONE
    if len(lines) > 1 and lines[1].startswith(b"-LOADING"):
        return Answer.LOADING
    return Answer.READY if len(lines) > 1 and lines[1] == b"+PONG" else Answer.NONE


async def _http(port: int, request: bytes) -> dict[str, Any] | None:
    """Return the JSON object a server answers with; None for anything else."""
    _, _, body = (await _exchange(port, request)).partition(b"\r\n\r\n")
    try:
        value = json.loads(body)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


async def _exchange(port: int, request: bytes) -> bytes:
    """Send the request and return all that comes back; nothing when nobody answers."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(request)
                return await _read_all(reader)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return b""


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    chunks = []
    size = 0
    while size < _MOST_BYTES and (chunk := await reader.read(_MOST_BYTES)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)
