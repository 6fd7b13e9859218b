"""The Lua scripts: loaded once, checked to exist, called by name.

Each ``lua/<name>.lua`` is one operation; its header names KEYS, ARGV, units and replies. Files that
begin with an underscore hold what several share, named by a ``-- @use`` line and put in front.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

NAMES = (
    "adopt", "apply", "claim", "commit", "create", "free", "grant", "offer", "promote", "release",
    "requeue", "retry", "seal", "stats", "unstage",
)  # fmt: skip

LAYOUT_VERSION = "1"
"""Version of keys, items and hash a job is pinned to; scripts refuse another one."""


class Script(NamedTuple):
    """One operation as a server takes it."""

    name: str
    source: str
    sha: str


def _read(name: str) -> str:
    return resources.files("common.frontier").joinpath("lua", f"{name}.lua").read_text("utf-8")


@lru_cache(maxsize=2)
def load(*, strict: bool) -> dict[str, Script]:
    """Return every script by name.

    Args:
        strict: begin with ``#!lua``, so that a key in another slot fails loudly (Redis 7, Valkey).
    """
    scripts = {}
    for name in NAMES:
        body = _read(name)
        uses = [line.split()[2:] for line in body.splitlines() if line.startswith("-- @use ")]
        shared = [_read(fragment) for used in uses for fragment in used]
        source = ("#!lua\n" if strict else "") + "\n".join([*shared, body])
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        scripts[name] = Script(name, source, digest)
    return scripts


class Call(NamedTuple):
    """One script call: keys and arguments, in the order of the script's header."""

    script: str
    keys: list[str]
    args: list[str | bytes | int]


RUN = "\0run"
"""Stands in ``Call.args`` for the run id of the server that the call is sent to."""
