"""The Lua scripts: loaded once, checked to exist, called by name.

Each ``lua/<name>.lua`` is one operation; its header names KEYS, ARGV, units and replies. Files that
begin with an underscore hold what several share, named by a ``-- @use`` line and put in front.
A ``-- @flags allow-oom`` line marks what must work on a server that is out of memory: looking,
setting a job's state, deleting.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

NAMES = (
    "adopt", "apply", "claim", "commit", "create", "dead_retry", "enrol", "free", "grant",
    "host_set", "ledger", "offer", "permit", "promote", "recall", "release", "requeue", "retry",
    "seal", "sitemap", "stats", "suspect", "trim", "unstage",
)  # fmt: skip

LAYOUT_VERSION = "4"
"""Version of keys, items and hash a job is pinned to; scripts refuse another one.

3: mode ``exact`` has no filter, and a filter sets all bits of a URL in one block (ADR 19).
4: a filter lies in buckets, and its blocks are shorter (ADR 20)."""


class Script(NamedTuple):
    """One operation as a server takes it."""

    name: str
    source: str
    sha: str


def _read(name: str) -> str:
    return resources.files("common.frontier").joinpath("lua", f"{name}.lua").read_text("utf-8")


def _words(body: str, mark: str) -> list[str]:
    lines = (line.split() for line in body.splitlines() if line.startswith(f"-- {mark} "))
    return [word for _, _, *words in lines for word in words]


@lru_cache(maxsize=2)
def load(*, strict: bool) -> dict[str, Script]:
    """Return every script by name.

    Args:
        strict: begin with ``#!lua``, so that a key in another slot fails loudly (Redis 7, Valkey).
    """
    scripts = {}
    for name in NAMES:
        body = _read(name)
        shared = [_read(fragment) for fragment in _words(body, "@use")]
        flags = ",".join(_words(body, "@flags"))
        first = f"#!lua flags={flags}\n" if flags else "#!lua\n"
        source = (first if strict else "") + "\n".join([*shared, body])
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        scripts[name] = Script(name, source, digest)
    return scripts


class Call(NamedTuple):
    """One script call: keys and arguments, in the order of the script's header."""

    script: str
    keys: list[str]
    args: list[str | bytes | int]
    run: str = ""
    """Where given: the only server run it may be sent to; on another it is answered RUN, unsent."""


RUN = "\0run"
"""Stands in ``Call.args`` for the run id of the server that the call is sent to."""
BORN = "\0born"
"""Stands for when that server began (Unix ms), or for 0 where a restart of it loses nothing."""
