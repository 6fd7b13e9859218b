"""Calls the command line as its entry point does, in this process or in a new one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from crawlctl.__main__ import main


class Answer(NamedTuple):
    """What a command gave back."""

    code: int
    out: str
    err: str


class Caller:
    """Runs commands and catches what they write."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured

    def __call__(self, *arguments: str) -> Answer:
        self._captured.readouterr()
        code = main(arguments)
        out, err = self._captured.readouterr()
        return Answer(code, out, err)


def checkout_environment(**more: str) -> dict[str, str]:
    """Return an environment in which any folder's Python finds this checkout."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **more}


def in_new_process(*arguments: str, **environment: str) -> Answer:
    """Run Python with these arguments."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env=checkout_environment(**environment),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return Answer(done.returncode, done.stdout, done.stderr)
