"""Watches etcd and Redis directly, past every fault, and writes down what happened there.

etcd's own history of all keys, and everything Redis carried out (MONITOR shows each script and,
after it, the commands it ran: a script that was refused wrote nothing).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable
from typing import NamedTuple

from common.coord import Coord
from common.coord.watch import Compacted
from common.coord.wire import Event, Get, KeyValue
from common.model.errors import CoordUnavailable
from tests.chaos.history import Change, Write

_WRITES = frozenset({
    "HSET", "HDEL", "HINCRBY", "HSETNX", "ZADD", "ZREM", "ZREMRANGEBYSCORE", "ZINCRBY", "SADD",
    "SREM", "RPUSH", "LPUSH", "LPOP", "RPOP", "LREM", "LTRIM", "XADD", "XDEL", "XTRIM", "XGROUP",
    "PFADD", "SET", "SETRANGE", "SETBIT", "BITFIELD", "GETDEL", "DEL", "UNLINK", "INCRBY",
    "EXPIRE", "PEXPIRE",
})  # fmt: skip
_LINE = re.compile(rb"^\+([0-9.]+) \[\d+ (\S+)\] (.*)$", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_SHARD = re.compile(rb"\{[^}]*:(\d+)\}")
_HEADER = re.compile(r"^-- ([a-z_]+): [^\n]*\n(?:--[^\n]*\n)*?-- KEYS\[1\]", re.MULTILINE)
_RETRY_S = 0.02


class EtcdObserver:
    """Follows every key of the cluster from the first revision on."""

    def __init__(self, coord: Coord) -> None:
        self.changes: list[Change] = []
        self.gaps = 0
        """How often history was compacted away before it was seen."""
        self._coord = coord
        self._next = 1
        self._seen: set[tuple[int, str]] = set()
        self._root = coord.keys.root

    @property
    def revision(self) -> int:
        """Up to which the history is known."""
        return self._next

    async def run(self) -> None:
        while True:
            try:
                target = Get(self._root, is_prefix=True)
                async with self._coord.etcd.watch(target, start_revision=self._next) as watch:
                    while True:
                        for event in await watch.next():
                            self._take(event)
            except Compacted:
                with contextlib.suppress(CoordUnavailable):
                    await self._jump()
            except CoordUnavailable:
                await asyncio.sleep(_RETRY_S)

    def _take(self, event: Event) -> None:
        kv = event.kv
        # Several keys may change in one revision; a watch that breaks between them resumes there.
        self._next = max(self._next, kv.mod_revision)
        if (kv.mod_revision, kv.key) in self._seen:
            return
        self._seen.add((kv.mod_revision, kv.key))
        self._note(kv, is_delete=event.is_delete)

    def _note(self, kv: KeyValue, *, is_delete: bool) -> None:
        value = json.loads(kv.value) if kv.value[:1] == b"{" else kv.value.decode()
        self.changes.append(
            Change(
                kv.mod_revision,
                kv.key.removeprefix(self._root),
                0 if is_delete else kv.create_revision,
                time.time(),
                value,
            )
        )

    async def _jump(self) -> None:
        """History up to now is gone: take what there is."""
        self.gaps += 1
        now = await self._coord.etcd.get_prefix(self._root)
        for kv in sorted(now.items.values(), key=lambda kv: kv.mod_revision):
            if kv.mod_revision >= self._next:
                self._seen.add((kv.mod_revision, kv.key))
                self._note(kv, is_delete=False)
        self._next = now.revision + 1

    async def settle(self, limit_s: float = 5.0) -> None:
        """Wait until the history is complete up to now."""
        now = await self._coord.etcd.get_prefix(self._root)
        newest = max((kv.mod_revision for kv in now.items.values()), default=0)
        deadline = time.monotonic() + limit_s
        while self._next < newest and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_RETRY_S)

    def latest(self, key: str) -> Change | None:
        return next((one for one in reversed(self.changes) if one.key == key), None)


class _Script(NamedTuple):
    name: str
    token_at: int | None
    """Index among ARGV, from 0."""
    term_at: int | None


def _read_script(source: str) -> _Script:
    """Read from a script's own header what it is and where it says who calls."""
    found = list(_HEADER.finditer(source))
    if not found:
        return _Script("?", None, None)
    header = source[found[-1].start() :]
    token = re.search(r"ARGV\[(\d+)\] token\b", header)
    term = re.search(r"ARGV\[(\d+)\] term\b", header)
    return _Script(
        found[-1][1], int(token[1]) - 1 if token else None, int(term[1]) - 1 if term else None
    )


class RedisObserver:
    """Listens with MONITOR; connects again whenever the server comes back."""

    def __init__(
        self, port: int, node_of: Callable[[int], str | None], *, own_clock: bool = False
    ) -> None:
        """Prepare.

        Args:
            port: of the server.
            node_of: which node speaks from a local port.
            own_clock: note the times of this process, since the server's clock may be stepped.
        """
        self._own_clock = own_clock
        self.writes: list[Write] = []
        self.runs = 0
        self.is_listening = asyncio.Event()
        self._port = port
        self._node_of = node_of
        self._scripts: dict[bytes, _Script] = {}
        self._current: tuple[float, int, _Script, list[bytes], bytes] | None = None
        self._has_written = False

    async def run(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await self._listen()
            self._flush()
            self.is_listening.clear()
            await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 26)
        try:
            writer.write(b"MONITOR\r\n")
            answer = await reader.readline()
            if not answer.startswith(b"+OK"):
                return
            self.runs += 1
            self.is_listening.set()
            while line := await reader.readline():
                self._take(line.rstrip(b"\r\n"))
        finally:
            writer.close()

    def _take(self, line: bytes) -> None:
        found = _LINE.match(line)
        if found is None:
            return
        at = time.time() if self._own_clock else float(found[1])
        client, rest = found[2], found[3]
        if client == b"lua":
            if not self._has_written:
                verb = rest[1 : rest.index(b'"', 1)].decode().upper()
                self._has_written = verb in _WRITES
            return
        self._flush()
        verb = rest[1 : rest.index(b'"', 1)].upper()
        if verb == b"SCRIPT":
            words = [_unquoted(word) for word in _WORD.findall(rest)]
            if words[1].upper() == b"LOAD":
                self._learn(words[2])
        elif verb in (b"EVALSHA", b"EVAL"):
            words = _WORD.findall(rest)
            if verb == b"EVAL":
                self._learn(_unquoted(words[1]))
                sha = hashlib.sha1(_unquoted(words[1])).hexdigest().encode()
            else:
                sha = words[1].lower()
            script = self._scripts.get(sha, _Script("?", None, None))
            count = int(words[2])
            shard = _SHARD.search(words[3]) if count else None
            port = int(client.rpartition(b":")[2])
            self._current = (at, port, script, words[3 + count :], shard[1] if shard else b"-1")
            self._has_written = False

    def sha_of(self, name: str) -> bytes:
        """Return the digest under which nodes call a script."""
        return next(sha for sha, script in self._scripts.items() if script.name == name)

    def _learn(self, source: bytes) -> None:
        sha = hashlib.sha1(source).hexdigest().encode()
        if sha not in self._scripts:
            self._scripts[sha] = _read_script(source.decode())

    def _flush(self) -> None:
        """The script before this line has ended."""
        if self._current is not None and self._has_written:
            at, port, script, args, shard = self._current
            self.writes.append(
                Write(
                    at,
                    self._node_of(port) or f"port {port}",
                    script.name,
                    int(shard),
                    _number(args, script.token_at),
                    _number(args, script.term_at),
                    self.runs,
                )
            )
        self._current = None
        self._has_written = False


def _number(args: list[bytes], at: int | None) -> int | None:
    return None if at is None or at >= len(args) or not args[at].isdigit() else int(args[at])


def _unquoted(word: bytes) -> bytes:
    return word.decode("unicode_escape").encode("latin-1")
