"""What a check of ``doctor`` found, and what is to be done about it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """How a check ended."""

    OK = "ok"
    INFO = "info"
    WARNING = "warning"
    FAILED = "failed"
    UNREACHABLE = "unreachable"


class Finding(NamedTuple):
    """The outcome of one check."""

    check: str
    status: Status
    detail: str
    remedy: str | None = None
