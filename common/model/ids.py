"""Identities, as distinct types so that mypy keeps them apart."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

from common.model.errors import UsageError

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
HostKey = NewType("HostKey", str)
"""Scheme and authority of a canonical URL (``http://example.org:8080``): the unit of politeness."""
GroupKey = NewType("GroupKey", str)
"""Hosts of one address or one registered domain: ``ip:192.0.2.7``, ``domain:example.org``."""
PaceKey = HostKey | GroupKey
"""What requests take turns for."""
Token = NewType("Token", int)
"""Fencing token: the create revision of a lock's key in etcd."""
Term = NewType("Term", int)
"""One reign of a master: the create revision of the election key."""
Revision = NewType("Revision", int)
"""A revision of the etcd store."""

_NUMBER = re.compile(r"([0-9]{1,18})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Task(NamedTuple):
    """One shard of one job: what a worker owns under one lock."""

    job: JobId
    shard: int

    def __str__(self) -> str:
        """Return ``job:shard``, the form used in Redis hash tags and in messages."""
        return f"{self.job}:{self.shard}"


def checked_name(value: str, *, field: str) -> str:
    """Return ``value`` if it can be a job, node or cluster name.

    Names become parts of etcd and Redis keys, so slashes, colons, braces and spaces are out.

    Raises:
        UsageError: the name does not fit; the message names ``field``.
    """
    if not _NAME.fullmatch(value):
        raise UsageError(
            f"{field}: {value!r} is not a valid name; use 1 to 64 letters, digits, '.', '_' "
            "or '-', beginning with a letter or digit"
        )
    return value


def in_order(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return what names are sorted by, so that people find them: numbers in them as numbers.

    ``w2`` comes before ``w10``, and ``01`` before ``1``.
    """
    parts = _NUMBER.split(name)  # texts and numbers in turn
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), name
