"""What is said to etcd and what it answers, and the protobuf messages for both.

Guards (:class:`Compare`) name revisions and leases, never values: an equal value does not show that
nothing happened in between, an equal revision does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from aetcd import rpc as _rpc

# The messages are built at run time from descriptors; there is nothing for mypy to read.
messages: Final[Any] = _rpc


class KeyValue(NamedTuple):
    """One key as etcd holds it. A deleted key in an event has an empty value."""

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int
    """0: under no lease."""


class Snapshot(NamedTuple):
    """All keys below a prefix as they were at one revision of the store."""

    revision: int
    items: dict[str, KeyValue]


class Event(NamedTuple):
    """One change seen by a watch; ``kv.mod_revision`` is the revision of the change."""

    kv: KeyValue
    is_delete: bool


class Compare(NamedTuple):
    """A guard of a transaction: the key's revision or lease must equal ``expected``.

    An absent key has revisions and lease 0.
    """

    key: str
    target: Literal["create", "mod", "lease"]
    expected: int


class Put(NamedTuple):
    """Write a key, under a lease unless that is 0."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete a key; an absent one is fine."""

    key: str


class Get(NamedTuple):
    """Read a key, or every key that begins with it."""

    key: str
    is_prefix: bool = False


Operation = Put | Delete | Get


class TxnReply(NamedTuple):
    """The answer to a transaction."""

    succeeded: bool
    """Whether every guard held, so that ``success`` was carried out; else ``failure`` was."""
    revision: int
    """The store's revision after it; a key created by it has this create revision."""
    reads: tuple[tuple[KeyValue, ...], ...]
    """What each operation of the branch read, in order; empty for puts and deletes."""

    def one(self, index: int) -> KeyValue | None:
        """Return the key read by the operation at ``index``, or None if it does not exist."""
        found = self.reads[index]
        return found[0] if found else None


def absent(key: str) -> Compare:
    """Guard: the key does not exist."""
    return Compare(key, "create", 0)


def created_at(key: str, revision: int) -> Compare:
    """Guard: the key exists without a break since ``revision``."""
    return Compare(key, "create", revision)


def modified_at(key: str, revision: int) -> Compare:
    """Guard: nobody wrote the key after ``revision``; 0 means that it does not exist."""
    return Compare(key, "mod", revision)


def leased_by(key: str, lease: int) -> Compare:
    """Guard: the key exists under this lease."""
    return Compare(key, "lease", lease)


def range_end(prefix: str) -> bytes:
    """Return the first key after all keys that begin with ``prefix``."""
    raw = prefix.encode()
    return raw[:-1] + bytes([raw[-1] + 1])


def from_kv(kv: Any) -> KeyValue:
    """Read a protobuf KeyValue."""
    return KeyValue(kv.key.decode(), bytes(kv.value), kv.create_revision, kv.mod_revision, kv.lease)


def range_request(operation: Get) -> Any:
    """Build a linearizable read."""
    if operation.is_prefix:
        return messages.RangeRequest(key=operation.key.encode(), range_end=range_end(operation.key))
    return messages.RangeRequest(key=operation.key.encode())


def txn_request(
    compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation]
) -> Any:
    """Build a transaction."""
    return messages.TxnRequest(
        compare=[_compare(one) for one in compare],
        success=[_operation(one) for one in success],
        failure=[_operation(one) for one in failure],
    )


def txn_reply(response: Any) -> TxnReply:
    """Read the answer to a transaction."""
    return TxnReply(
        response.succeeded,
        response.header.revision,
        tuple(
            tuple(from_kv(kv) for kv in one.response_range.kvs)
            if one.WhichOneof("response") == "response_range"
            else ()
            for one in response.responses
        ),
    )


def watch_events(response: Any) -> tuple[Event, ...]:
    """Read the events of a watch response."""
    return tuple(
        Event(from_kv(event.kv), event.type == messages.Event.DELETE) for event in response.events
    )


def _compare(guard: Compare) -> Any:
    message = messages.Compare(key=guard.key.encode(), result=messages.Compare.EQUAL)
    match guard.target:
        case "create":
            message.target = messages.Compare.CREATE
            message.create_revision = guard.expected
        case "mod":
            message.target = messages.Compare.MOD
            message.mod_revision = guard.expected
        case "lease":
            message.target = messages.Compare.LEASE
            message.lease = guard.expected
    return message


def _operation(operation: Operation) -> Any:
    match operation:
        case Put(key, value, lease):
            put = messages.PutRequest(key=key.encode(), value=value, lease=lease)
            return messages.RequestOp(request_put=put)
        case Delete(key):
            delete = messages.DeleteRangeRequest(key=key.encode())
            return messages.RequestOp(request_delete_range=delete)
        case Get():
            return messages.RequestOp(request_range=range_request(operation))
