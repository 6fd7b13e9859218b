"""How this process starts Python processes that run the same code as itself.

Wherever they are started from: the current folder is never a place to import from, since it is the
user's and may hold a ``common`` or ``redis.py`` of its own.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = str(Path(__file__).resolve().parents[2])
"""The folder that holds our packages: site-packages, or a checkout."""

_PASSED_ON: Final = ("CRAWLCTL_LOG_LEVEL", "CRAWLCTL_LOG_FORMAT")


def module_command(name: str) -> tuple[str, ...]:
    """Return the command that runs one of our modules as a program."""
    isolation = "-I" if sys.flags.isolated else "-P"
    return (sys.executable, isolation, "-m", name)


def child_environment(environ: Mapping[str, str], **own: str) -> dict[str, str]:
    """Return the environment for a child of ours.

    Settings in ``environ`` are about services of the user's, which an embedded run does not use:
    only those about logs are passed on. ``own`` are settings for the child, by name.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith("CRAWLCTL_") or name in _PASSED_ON
    }
    if _ROOT not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        before = kept.get("PYTHONPATH")
        kept["PYTHONPATH"] = os.pathsep.join([_ROOT, before] if before else [_ROOT])
    return kept | {f"CRAWLCTL_{name.upper()}": value for name, value in own.items()}
