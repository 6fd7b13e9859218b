"""The folder of an embedded run: who may use it, what it holds, what was written by us.

Layout: results at the top, everything else in ``.crawlctl`` (``etcd``, ``redis``, ``logs``, two
lock files, ``state.json``). Two locks, both of the kernel, so that no crash leaves one behind:

- ``lock`` is held by the process that runs the crawl or the ``up``: a second one is refused.
- ``children.lock`` is inherited by every process it starts. Whoever takes it knows that all
  processes of the former run are dead, which is what lets their leases and locks be buried.

The lock files are never deleted: a process could hold one that has no name any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import msgspec

from common.model.errors import CrawlerError, RefusedError, UsageError
from common.model.job import JobSpec

OWN: Final = ".crawlctl"
RESULTS: Final = ("results.jsonl", "summary.json", "warc")
"""What a crawl writes beside ``.crawlctl``."""
STATE_VERSION: Final = 1

_LOCK: Final = "lock"
_CHILDREN_LOCK: Final = "children.lock"
_POLL_S: Final = 0.02
_GRACE_S: Final = 0.3
"""For a process that was just killed and is not quite gone."""


class FolderState(msgspec.Struct, frozen=True, kw_only=True):
    """What run the folder holds."""

    kind: Literal["crawl", "up"]
    job: str | None = None
    """Id of the job of a crawl."""
    spec: JobSpec | None = None
    seeds: str | None = None
    """Digest of the seeds: the same command again means the same ones."""
    finished: bool = False
    versions: dict[str, str] = {}
    """What wrote the data: crawlctl and the two servers."""
    version: int = STATE_VERSION


class Folder:
    """A folder claimed by this process; a context manager that gives it up."""

    def __init__(self, path: Path, *, outputs: tuple[str, ...], lock: int) -> None:
        self.path = path
        self._outputs = outputs
        self._lock = lock
        self._children = -1

    @classmethod
    def claim(
        cls, path: Path | str, *, outputs: tuple[str, ...] = RESULTS, wait_s: float = 15.0
    ) -> Self:
        """Take the folder, creating it where there is none. Blocks up to ``wait_s`` seconds.

        Args:
            path: the folder.
            outputs: what will be written beside ``.crawlctl``; must not exist in a new folder.
            wait_s: how long children of a killed run may take to die.

        Raises:
            UsageError: it cannot be written, or holds things that are not ours.
            RefusedError: another process uses it, or one of a former run does not end.
        """
        path = Path(path).absolute()
        own = path / OWN
        with _usage_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            _check_ours(path, own, outputs)
            own.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(own / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        folder = cls(path, outputs=outputs, lock=lock)
        try:
            with _usage_errors(path):
                folder._take(wait_s)
        except BaseException:
            folder.close()
            raise
        return folder

    def _take(self, wait_s: float) -> None:
        if not _lock_within(self._lock, _GRACE_S):
            raise RefusedError(f"{self.path} is in use by process {_named_holder(self._lock)}")
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, b"%d\n" % os.getpid(), 0)
        for folder in (self.etcd, self.redis, self.logs):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._children = os.open(self.own / _CHILDREN_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock_within(self._children, wait_s):
            raise RefusedError(
                f"{self.path} is in use: processes of a former run still have not ended"
                f"{_list_holders(self.own / _CHILDREN_LOCK)}; end them (kill -9) and try again"
            )

    @property
    def own(self) -> Path:
        """Where everything but the results lies."""
        return self.path / OWN

    @property
    def etcd(self) -> Path:
        """Data of the private etcd."""
        return self.own / "etcd"

    @property
    def redis(self) -> Path:
        """Data of the private Redis or Valkey."""
        return self.own / "redis"

    @property
    def logs(self) -> Path:
        """Logs of the servers and nodes."""
        return self.own / "logs"

    @property
    def children_fd(self) -> int:
        """Descriptor every child must inherit (``pass_fds``) and keep until it dies."""
        return self._children

    def load_state(self) -> FolderState | None:
        """Return what run the folder holds; None for a new one.

        Raises:
            UsageError: it was written by another version, or is damaged.
        """
        try:
            raw = (self.own / "state.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            state = msgspec.json.decode(raw, type=FolderState)
        except (msgspec.DecodeError, UsageError) as error:
            raise UsageError(
                f"{self.own / 'state.json'} cannot be read ({error}); use the version of crawlctl "
                "that wrote it, or start over with --fresh"
            ) from error
        if state.version != STATE_VERSION:
            raise UsageError(
                f"{self.path} was written by another version of crawlctl (layout {state.version}, "
                f"this one has {STATE_VERSION}); use that one, or start over with --fresh"
            )
        return state

    def save_state(self, state: FolderState) -> None:
        """Store what run the folder holds; after a crash it is the old state or this one."""
        write_atomically(self.own / "state.json", msgspec.json.encode(state))

    def wipe(self) -> None:
        """Delete what we made here and nothing else, keeping the claim.

        Of ``warc`` only archive files go; the folder itself when nothing else is in it.
        """
        with _usage_errors(self.path):
            for name in self._outputs:
                _delete_output(self.path / name)
            for entry in self.own.iterdir():
                if entry.name in (_LOCK, _CHILDREN_LOCK):
                    continue
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            for folder in (self.etcd, self.redis, self.logs):
                folder.mkdir(mode=0o700)

    def close(self) -> None:
        """Give the folder up. Children that still live keep their lock."""
        for number in (self._children, self._lock):
            if number >= 0:
                os.close(number)
        self._children = self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def holder_of(path: Path | str) -> int | None:
    """Return the process that uses the folder; None when nobody does."""
    try:
        lock = os.open(Path(path) / OWN / _LOCK, os.O_RDWR)
    except OSError:
        return None
    try:
        if _try_lock(lock):
            return None
        holder = _named_holder(lock)
    finally:
        os.close(lock)
    return int(holder) if holder.isdecimal() else None


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Replace a file so that a crash leaves the old content or the new one, never a part."""
    draft = path.with_name(f"{path.name}.draft")
    number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(number, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_ours(path: Path, own: Path, outputs: tuple[str, ...]) -> None:
    """Refuse a folder whose content could be overwritten or deleted though it is not ours."""
    if (own / _LOCK).exists():
        return
    if own.is_dir() and any(own.iterdir()):
        raise UsageError(
            f"{own} exists and was not made by crawlctl; choose another folder or move it away"
        )
    for name in outputs:
        if (path / name).exists():
            raise UsageError(
                f"{path / name} exists and belongs to no crawl in this folder; choose another "
                "folder or move it away"
            )


def _try_lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_within(number: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not _try_lock(number):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _named_holder(lock: int) -> str:
    """Return the process id its holder wrote; it may not have come to that yet."""
    deadline = time.monotonic() + 1.0
    while True:
        text = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        if text or time.monotonic() > deadline:
            return text or "(unknown)"
        time.sleep(_POLL_S)


def _list_holders(path: Path) -> str:
    """Return who has the file open, as part of a sentence; empty when that cannot be told."""
    # Only an error needs this: it must not slow down every start.
    import psutil  # noqa: PLC0415

    name = str(path.resolve())
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(
                file.path == name for file in process.open_files()
            ):
                found.append(str(process.pid))
        except psutil.Error:
            continue
    return f" (process {', '.join(found)})" if found else ""


def _delete_output(path: Path) -> None:
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    for entry in path.iterdir():
        if ".warc" in entry.suffixes and not entry.is_dir():
            entry.unlink()
    if not any(path.iterdir()) and not path.is_symlink():
        path.rmdir()


@contextmanager
def _usage_errors(path: Path) -> Iterator[None]:
    """Tell what is wrong with a folder in the user's words."""
    try:
        yield
    except CrawlerError:
        raise
    except FileExistsError as error:
        raise UsageError(
            f"{error.filename or path} is a file where a folder is needed; choose another folder"
        ) from error
    except NotADirectoryError as error:
        raise UsageError(
            f"{path} leads through a file that is no folder; choose another folder"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP):
            raise UsageError(
                f"{path} lies on a file system without file locks; choose a folder on a local disk"
            ) from error
        raise UsageError(
            f"{path} cannot be used ({error.strerror or error}); choose a folder you may write to"
        ) from error
