"""The file by which a running ``crawlctl up`` is found: its process, its folder and its endpoints.

One file a cluster name, in the user's state folder. The process that serves writes it when it is
ready and removes it when it leaves; a file whose process is gone is ignored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec


class UpState(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running ``crawlctl up`` serves."""

    pid: int
    data: str
    """Absolute path of its folder."""
    etcd: str
    redis: str
    etcd_program: str = "etcd"
    redis_program: str = "data server"
    """Which programs serve there, for people."""

    @property
    def is_alive(self) -> bool:
        """Tell whether its process runs and is ours; a foreign process merely reuses the number."""
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, PermissionError, OverflowError):
            return False
        return True


def path_of(cluster: str, environ: Mapping[str, str]) -> Path:
    """Return where the state of this cluster's ``up`` is kept."""
    base = environ.get("XDG_STATE_HOME") or ""
    # Relative paths are to be ignored by the XDG rules: they would mean another file everywhere.
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return folder / "crawlctl" / f"up-{cluster}.json"


def load(cluster: str, environ: Mapping[str, str]) -> UpState | None:
    """Return the state of a running ``up``; None where there is none."""
    try:
        state = msgspec.json.decode(path_of(cluster, environ).read_bytes(), type=UpState)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return None
    return state if state.pid > 0 and state.is_alive else None


def save(state: UpState, cluster: str, environ: Mapping[str, str]) -> Path:
    """Write the file (readable by the user alone, complete or not at all) and return its path."""
    path = path_of(cluster, environ)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(path)
    return path


def remove(pid: int, cluster: str, environ: Mapping[str, str]) -> None:
    """Remove the file if it speaks of this process: another one may have taken its place."""
    path = path_of(cluster, environ)
    try:
        state = msgspec.json.decode(path.read_bytes(), type=UpState)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return
    if state.pid == pid:
        path.unlink(missing_ok=True)
