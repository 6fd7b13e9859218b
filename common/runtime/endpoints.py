"""Addresses of services as users write them, checked before anything is connected to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from common.model.errors import SettingsError
from common.runtime.secrets import mask_url, reveal

_HOST_PORT: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]@,]+):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT: Final = 65_535
_REDIS_PORT: Final = 6379
_HERE: Final = ("localhost", "127.0.0.1", "0.0.0.0", "::1", "::")  # noqa: S104  # to connect to


def host_and_port(text: str, *, where: str, lowest_port: int = 1) -> tuple[str, int]:
    """Split ``HOST:PORT`` (an IPv6 address in brackets, which are removed).

    Raises:
        SettingsError: it is something else; the message begins with ``where``.
    """
    match = _HOST_PORT.fullmatch(text)
    port = int(match["port"]) if match else -1
    if match is None or not lowest_port <= port <= _HIGHEST_PORT:
        raise SettingsError(
            f"{where}: {text!r} is not HOST:PORT (as in 127.0.0.1:2379 or [::1]:2379)"
        )
    return match["host"].strip("[]"), port


def etcd_endpoint(text: str, *, where: str) -> str:
    """Return an etcd endpoint as it is, once checked to be ``HOST:PORT``."""
    host_and_port(text, where=where)
    return text


def redis_url(text: str, *, where: str, environ: Mapping[str, str]) -> str:
    """Return a Redis URL with its password revealed, once checked.

    The password may be a secret reference (``redis://:env:NAME@host:6379/0``).

    Raises:
        SettingsError: another scheme, a missing host, a bad port or database number.
    """
    expected = "expected redis://[USER:PASSWORD@]HOST[:PORT][/DB], or rediss:// for TLS"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError(f"{where}: {mask_url(text)!r}: {expected}") from error
    database = parts.path.strip("/")
    if (
        parts.scheme not in ("redis", "rediss")
        or not parts.hostname
        or port == 0
        or (database and not database.isdecimal())
    ):
        raise SettingsError(f"{where}: {mask_url(text)!r}: {expected}")
    given = unquote(parts.password or "")
    if given.startswith(("@", "env:")):
        password = reveal(given, field=f"{where} (password)", environ=environ)
        user, _, address = parts.netloc.rpartition("@")
        name = user.partition(":")[0]
        parts = parts._replace(netloc=f"{name}:{quote(password, safe='')}@{address}")
        return parts.geturl()
    return text


def etcd_place(endpoint: str) -> tuple[str, int]:
    """Return where an etcd is, the same for all names of this machine."""
    host, port = host_and_port(endpoint, where="--etcd")
    return _here_or(host), port


def redis_place(url: str) -> tuple[str, int]:
    """Return where a data server is, the same for all names of this machine."""
    parts = urlsplit(url)
    return _here_or(parts.hostname or ""), parts.port or _REDIS_PORT


def _here_or(host: str) -> str:
    return "localhost" if host.lower() in _HERE else host.lower()
