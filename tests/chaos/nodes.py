"""Masters and workers as processes started by the command line.

A *slot* (``w1``) is a place for one process at a time; each process in it has an id of its own
(``w1-1``, ``w1-2``), as machines under a supervisor that gives a new name would.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.cli import environment
from tests.support.servers import dying_with_parent

UNREACHABLE = 3
_SERVING = re.compile(r"worker\.serving|master\.standby")
"""Said once a process has reached its services: before that it may end because they are away."""
_TRACE = re.compile(r"Traceback \(most recent call last\)|\bexception\b.*Error", re.IGNORECASE)


class Node:
    """One process."""

    def __init__(self, slot: str, number: int, role: str, process: subprocess.Popen[bytes]) -> None:
        self.slot = slot
        self.id = f"{slot}-{number}"
        self.role = role
        self.process = process
        self.is_meant_to_end = False

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.is_meant_to_end = True
        self.signal(signal.SIGKILL)
        self.process.wait()


class Slots:
    """All slots, and what ended in them."""

    def __init__(self, folder: Path, tree: Path, *, lease_ttl_s: float) -> None:
        self.current: dict[str, Node] = {}
        self.died: list[str] = []
        self.common: dict[str, str] = {}
        """Environment of every process, commands included."""
        self.extra: dict[str, Mapping[str, str]] = {}
        """Environment of a slot's processes."""
        self._folder = folder
        self._tree = tree
        self._lease_ttl_s = lease_ttl_s
        self._numbers: dict[str, int] = {}
        self._all: list[Node] = []

    def next_id(self, slot: str) -> str:
        return f"{slot}-{self._numbers.get(slot, 0) + 1}"

    def start(self, slot: str, role: str, arguments: list[str]) -> Node:
        number = self._numbers[slot] = self._numbers.get(slot, 0) + 1
        log = self._folder / f"{slot}-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    *dying_with_parent(),
                    sys.executable, "-m", "crawlctl", f"start-{role}",
                    "--id", f"{slot}-{number}", "--lease-ttl", str(self._lease_ttl_s), *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(**self.extra.get(slot, {})),
                start_new_session=True,
            )  # fmt: skip
        node = self.current[slot] = Node(slot, number, role, process)
        self._all.append(node)
        return node

    def environment(self, **extra: str) -> dict[str, str]:
        kept = environment(self._folder, **self.common, **extra)
        # Safe: the folder this was started from may hold the packages as well.
        own = {"PYTHONPATH": str(self._tree), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        return kept | own

    def look(self) -> list[Node]:
        """Return what ended by itself; those whose services were away are to be started again."""
        again = []
        for slot, node in list(self.current.items()):
            code = node.process.poll()
            if code is None or node.is_meant_to_end:
                continue
            del self.current[slot]
            if code == UNREACHABLE and not self.has_served(node):
                again.append(node)
            else:
                self.died.append(f"{node.id} ended by itself with code {code}")
        return again

    def has_served(self, node: Node) -> bool:
        log = (self._folder / f"{node.id}.log").read_text(errors="replace")
        return _SERVING.search(log) is not None

    def end_all(self) -> None:
        for node in self._all:
            if node.is_running:
                os.kill(node.process.pid, signal.SIGKILL)
        for node in self._all:
            node.process.wait()

    def tracebacks(self) -> list[str]:
        found = []
        for node in self._all:
            text = (self._folder / f"{node.id}.log").read_text(errors="replace")
            lines = text.splitlines()
            found += [
                f"{node.id}: " + " | ".join(lines[at : at + 40])[-600:]
                for at, line in enumerate(lines)
                if _TRACE.search(line)
            ]
        return found
