"""The end of a child's log, for the one message that tells why it died."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 4_000
_KEPT_BYTES: Final = 16_000_000


def log_size(path: Path) -> int:
    """Return its size in bytes; 0 while there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def log_tail(path: Path, *, start: int = 0, lines: int = 3) -> str:
    """Return its last lines as one; only of what was written after the first ``start`` bytes."""
    size = log_size(path)
    if size <= start:
        return "(nothing)"
    with path.open("rb") as file:
        file.seek(max(start, size - _MOST_BYTES))
        text = file.read(_MOST_BYTES).decode("utf-8", "replace")
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(kept[-lines:]) or "(nothing)"


def shift_log(path: Path) -> None:
    """Move a log that has grown large out of the way, over the one moved before."""
    if log_size(path) > _KEPT_BYTES:
        path.replace(path.with_name(f"{path.name}.1"))
