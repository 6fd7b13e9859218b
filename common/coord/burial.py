"""What may be done when every process that used a private etcd is known to be dead.

An embedded etcd that is started again holds the leases and locks of the run before. Its processes
are known to be dead, so there is no need to wait for the leases: they are revoked, and the key
``buried`` records the revision below which every token belongs to a dead process.

Never for a shared etcd: there nobody knows who is dead.
"""

from __future__ import annotations

import asyncio

from common.coord.client import Etcd
from common.coord.keys import Keys
from common.coord.settle import settled
from common.coord.wire import Get, Put, modified_at
from common.model.ids import Revision


async def revoke_all_leases(etcd: Etcd) -> int:
    """Revoke every lease of the store and with them all locks, terms and registrations.

    Returns:
        How many there were.

    Raises:
        CoordUnavailable: etcd does not answer; some may be left, so repeat.
    """
    leases = await etcd.leases()
    await asyncio.gather(*(etcd.revoke(lease) for lease in leases))
    return len(leases)


async def bury(etcd: Etcd, keys: Keys) -> Revision:
    """Record that every token given so far belongs to a dead process; return the revision."""
    # The guard keeps a late copy of this write from burying those who came after it.
    seen = await buried_below(etcd, keys)
    done = await settled(
        etcd,
        compare=[modified_at(keys.buried, seen)],
        success=[Put(keys.buried, b"")],
        failure=[Get(keys.buried)],
    )
    found = None if done.reply.succeeded else done.reply.one(0)
    return Revision(done.reply.revision if found is None else found.mod_revision)


async def buried_below(etcd: Etcd, keys: Keys) -> int:
    """Return the revision below which tokens belong to dead processes; 0 if there is none."""
    found = await etcd.get(keys.buried)
    return 0 if found is None else found.mod_revision
