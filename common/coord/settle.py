"""Guarded writes carried through until their outcome is known.

Only for writes whose guard can hold once: when the first copy was applied, the second one fails,
and what the failure branch reads shows whose value is there. See rule "unknown outcome" in
docs/adr/0003-fencing-token.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from common.coord.jitter import pause
from common.coord.wire import Compare, Operation, TxnReply
from common.model.errors import CoordUnavailable, UnknownOutcome

_TRIES: Final = 4


class Writer(Protocol):
    """Something that carries out transactions: a client or a session."""

    async def txn(
        self,
        *,
        compare: Sequence[Compare],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
    ) -> TxnReply:
        """See :meth:`common.coord.client.Etcd.txn`."""
        ...


class Settled(NamedTuple):
    """The reply to the last copy of a write."""

    reply: TxnReply
    is_repeated: bool
    """Whether copies sent before got no answer; one of them may be what was applied."""


async def settled(
    writer: Writer,
    *,
    compare: Sequence[Compare],
    success: Sequence[Operation],
    failure: Sequence[Operation],
) -> Settled:
    """Carry out a guarded write, again with the same guards while its outcome is unknown.

    Raises:
        CoordUnavailable: surely not applied.
        UnknownOutcome: still unknown after several tries.
    """
    unknown: UnknownOutcome | None = None
    for _ in range(_TRIES):
        try:
            reply = await writer.txn(compare=compare, success=success, failure=failure)
        except UnknownOutcome as error:
            unknown = error
        except CoordUnavailable:
            # This copy was not applied, but a former one may have been.
            if unknown is None:
                raise
        else:
            return Settled(reply, is_repeated=unknown is not None)
        await pause()
    assert unknown is not None
    raise unknown
