"""What the scripts answer, as values."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from common.model.errors import ScriptBug
from common.model.ids import HostKey


class Refusal(StrEnum):
    """Why a script did nothing."""

    STALE = "STALE"
    """A newer token, term or job revision was seen: the caller's time is over."""
    MISSING = "MISSING"
    """No such shard. Never created by anyone but the master of a new job."""
    RUN = "RUN"
    """The server was restarted since the shard was adopted, or the claim was sent under an adoption
    that is over: verify the lock, then adopt."""
    CLOSED = "CLOSED"
    """The job is over."""
    RETRY = "RETRY"
    """The shard is sealed for the moment: ask again."""


class ShardState(StrEnum):
    """What a shard accepts."""

    OPEN = "open"
    PAUSED = "paused"
    """Offers yes, claims no."""
    SEALED = "sealed"
    """Neither, while the master confirms that the job is finished."""
    SPENT = "spent"
    """The page budget is used up: what is queued is claimed only to be dropped."""
    CANCELLED = "cancelled"
    """As spent, and offers are refused."""
    CLOSED = "closed"


def refusal_of(reply: Sequence[Any], script: str) -> Refusal | None:
    """Return the refusal in a reply, or None for OK.

    Raises:
        ScriptBug: the shard has another layout version, or the reply is not one of the script's.
    """
    tag = reply[0].decode()
    if tag == "OK":
        return None
    if tag in Refusal.__members__:
        return Refusal(tag)
    if tag == "VERSION":
        raise other_layout(reply[1], f"script {script}")
    raise ScriptBug(f"script {script}: unexpected answer {tag}")


def other_layout(version: bytes, asked: str) -> ScriptBug:
    """Return what is raised where a shard has another layout version than this program."""
    return ScriptBug(
        f"{asked}: the job was made by another version of crawlctl (layout "
        f"{version.decode()}); finish or delete it with that version"
    )


class Claim(NamedTuple):
    """A URL taken to be worked on."""

    number: int
    """Serial number of the claim within its shard; never reused."""
    host: HostKey
    item: bytes
    rule: str
    """Empty = fetch it; else the budget or state for which it is to be committed as dropped."""


class Claimed(NamedTuple):
    """The answer to a claim, with what to name next time."""

    state: ShardState
    claims: list[Claim]
    ahead: list[tuple[HostKey, int]]
    """Hosts with queued URLs and the ms until each is due, soonest first."""
    delayed: list[bytes]
    """Delayed members that are due: to be promoted."""
    wait_ms: int
    """Until something may become due; -1 = nothing known."""
    delays: dict[HostKey, int]
    """Of the hosts ahead, those for which another delay was set than the job's: ms."""


class Offered(NamedTuple):
    """An offer was taken."""

    admitted: int
    discovered: int


class Adopted(NamedTuple):
    """A shard was adopted."""

    in_flight: int
    is_new_run: bool
