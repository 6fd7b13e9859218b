"""From a seed to a schedule: which faults, on what, when and for how long. Nothing else decides."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.chaos import faults

FIRST_S, LAST_S = 0.5, 9.0
"""Faults begin in this time after the job was submitted."""
_RARE = frozenset({"lose-quorum", "restart-etcd"})


class Step(NamedTuple):
    """One fault of a schedule."""

    at_s: float
    name: str
    pick: int
    lasts_s: float

    def __str__(self) -> str:
        return f"{self.name}@{self.at_s:.1f}+{self.lasts_s:.1f}"


class Profile(NamedTuple):
    """Which faults a run may have."""

    names: tuple[str, ...]
    fewest: int
    most: int
    appendfsync: str = "always"
    users: bool = False
    """etcd asks for a user and a password."""
    clocks: bool = False
    """Clocks can be stepped, which needs a C compiler."""
    options: tuple[tuple[str, Any], ...] = ()
    """Of the job, beside those of every lab."""
    also: tuple[str, ...] = ()
    """Injected in every run, once."""


_COMMON = tuple(
    name for name, kind in faults.ALL.items() if not kind.damages and "clock" not in name
)
PROFILES = {
    "all": Profile(_COMMON, 3, 6),
    "basic": Profile(("kill-worker", "stop-worker", "kill-redis"), 2, 4),
    "processes": Profile(
        tuple(name for name in _COMMON if "worker" in name or "master" in name), 3, 6
    ),
    "etcd": Profile(tuple(name for name in _COMMON if "etcd" in name or name in _RARE), 3, 6),
    "redis": Profile(
        ("kill-redis", "stop-redis", "cut-worker-redis", "lost-replies", "kill-worker"), 3, 6
    ),
    "flush": Profile(("kill-worker", "kill-master"), 0, 2, also=("flush-redis",)),
    "everysec": Profile(
        ("kill-worker", "kill-master", "stop-worker", "cut-worker-etcd"),
        2,
        5,
        appendfsync="everysec",
    ),
    "users": Profile(
        (
            "restart-etcd",
            "kill-etcd-leader",
            "lose-quorum",
            "kill-worker",
            "cut-worker-etcd",
            "cut-master-etcd",
            "revoke-lease",
        ),
        2,
        5,
        users=True,
    ),
    "clocks": Profile(
        ("step-redis-clock", "step-node-clock", "kill-worker", "drain-worker"),
        2,
        5,
        clocks=True,
        also=("step-redis-clock",),
    ),
    "node-clocks": Profile(
        (*_COMMON, "step-node-clock"), 2, 4, clocks=True, also=("step-node-clock",)
    ),
    "budget": Profile(
        (
            "kill-worker",
            "stop-worker",
            "kill-master",
            "stop-master",
            "cut-worker-etcd",
            "cut-worker-redis",
            "cut-master-redis",
            "lost-replies",
            "kill-redis",
            "drain-worker",
            "pause-job",
        ),
        2,
        5,
        options=(("max_pages", 80),),
    ),
    "wide": Profile(_COMMON, 3, 6, options=(("per_host", 3), ("delay", 0.15))),
    "none": Profile((), 0, 0),
}


def schedule(seed: int, profile: Profile) -> list[Step]:
    """Return the steps of a seed, in order of their times."""
    chance = random.Random(f"schedule {seed}")
    names = [
        chance.choice(profile.names) for _ in range(chance.randint(profile.fewest, profile.most))
    ]
    steps = [_step(name, chance) for name in [*names, *profile.also]]
    return sorted(steps)


def _step(name: str, chance: random.Random) -> Step:
    shortest, longest = faults.ALL[name].lasts_s
    return Step(
        round(chance.uniform(FIRST_S, LAST_S), 2),
        name,
        chance.randrange(240),
        round(chance.uniform(shortest, longest), 2),
    )
