"""Groups of hosts: those at one address, those of one registered domain, and the lines before them.

At most so many requests at once go to a group (``--per-ip``, ``--per-domain``), over all workers of
a cluster and all jobs that ask for it. Many hosts may want the same group: the URLs that wait here
for its turn are few, since each holds one of the process' places; the others are told to come back
one after the other, as fast as the group lets them through.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from common.frontier.pace import address_group, domain_group
from common.model.ids import GroupKey, HostKey, PaceKey
from common.model.job import JobSpec
from common.web.scope import domain_of
from worker.addresses import reached_by
from worker.dns import Addresses, Route
from worker.turns import Turns

LONGEST_LINE: Final = 8
"""URLs that wait here for the turn of one group, at most."""
LINE_S: Final = 5.0
"""And for so long: then another one may have the place."""
BACK_S: Final = (0.05, 10.0)
"""Soonest and latest that one who found the line full comes back."""
_FIRST_GAP_S: Final = 0.1
_SMOOTHING: Final = 0.2
_MAX_LINES: Final = 50_000


class Group(NamedTuple):
    """What a request needs a turn of beside its host's."""

    key: GroupKey
    at_once: int
    """Requests at one time that the job allows."""


@dataclass(slots=True)
class _Line:
    """How fast a group lets requests through; times are monotonic seconds."""

    gap_s: float = _FIRST_GAP_S
    """Between two turns, the time in which nobody waited left out."""
    turn_at: float = 0.0
    """The last one."""
    since: float = 0.0
    """When the line was last found empty."""
    back_at: float = 0.0
    """When the last of those who found the line full comes back."""


class Groups:
    """The groups of a job's hosts, and the lines before them, in one process."""

    def __init__(
        self, *, per_domain: int | None, per_ip: int | None, addresses: Addresses | None
    ) -> None:
        """Prepare.

        Args:
            per_domain: requests at once to one registered domain; None = no limit.
            per_ip: the same to one address.
            addresses: where hosts are; with ``per_ip`` only.
        """
        self._per_domain = per_domain
        self._per_ip = per_ip
        self._addresses = addresses
        self._lines: dict[PaceKey, _Line] = {}

    def route(self, host: HostKey) -> Route | None:
        """Return what says the address of each request of a visit; None = it does not matter."""
        return None if self._addresses is None else Route(self._addresses, host)

    async def of(self, host: HostKey, route: Route | None, *, within_s: float) -> list[Group]:
        """Return the groups of the next request to a host, in the order in which turns are taken.

        A host without an address is in no group of one: nothing will be connected to.

        Args:
            host: where the request goes.
            route: is to say to which address.
            within_s: how long its name may be looked up.
        """
        groups: list[Group] = []
        if self._per_domain is not None:
            groups.append(Group(domain_group(domain_of(f"{host}/")), self._per_domain))
        if self._per_ip is not None and route is not None:
            chosen = await route.choose(within_s=within_s)
            if chosen.address is not None:
                groups.append(Group(address_group(reached_by(chosen.address)), self._per_ip))
        return groups

    def refusal_s(self, group: Group, *, waiting: int) -> float | None:
        """Return when to come back where the line is full, in seconds; None = it is not."""
        return self._back_s(group.key) if waiting >= min(group.at_once, LONGEST_LINE) else None

    async def start(self, turns: Turns, *, before: float) -> float | None:
        """Wait in line for a turn of a group and take it.

        Args:
            turns: those of the group.
            before: monotonic time until which to wait, if that is not long.

        Returns:
            None = it is taken. Else nothing was: seconds after which to come again.
        """
        line, asked_at = self._line(turns.key), time.monotonic()
        if not turns.waiting:
            line.since = asked_at
        wait_s = await turns.start(0.0, before=min(before, asked_at + LINE_S))
        now = time.monotonic()
        if wait_s is not None:
            return max(wait_s, self._back_s(turns.key))
        line.gap_s += _SMOOTHING * (now - max(line.turn_at, asked_at) - line.gap_s)
        line.turn_at = now
        return None

    def _back_s(self, key: PaceKey) -> float:
        line, now = self._line(key), time.monotonic()
        gap_s = max(line.gap_s, now - max(line.turn_at, line.since))
        line.back_at = min(max(line.back_at, now) + gap_s, now + BACK_S[1])
        return max(line.back_at - now, BACK_S[0])

    def _line(self, key: PaceKey) -> _Line:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= _MAX_LINES:
                self._lines.pop(next(iter(self._lines)))
            line = self._lines[key] = _Line()
        return line


def groups_of(spec: JobSpec, addresses: Addresses | None) -> Groups | None:
    """Return the groups that a job limits; None = none."""
    if spec.per_ip is None and spec.per_domain is None:
        return None
    return Groups(per_domain=spec.per_domain, per_ip=spec.per_ip, addresses=addresses)
