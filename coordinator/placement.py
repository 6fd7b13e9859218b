"""Who should own which task: weighted consistent hashing with bounded load.

Every worker stands at several points of a ring, in proportion to its weight; a task belongs to the
first worker after the task's own point that has room. Two rules keep movement small:

1. A task stays where it is while its worker is eligible and within its bound,
   ``ceil((1 + slack) * share)``. Weights that drift move nothing until a bound is crossed.
2. A worker more than ``slack`` below its share (one that just joined) is filled up to
   ``floor(share)``, from the workers that are furthest above theirs.

Points are hashes of names, so every master, whenever elected, finds the same ring. Among workers of
equal weight, one that joins or leaves moves about its own share of the tasks and nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor

import xxhash

from common.model.ids import NodeId, Task

_POINTS_PER_WEIGHT = 64
"""Points of a worker of weight 1: enough that neighbours on the ring get similar stretches."""


def place(
    tasks: Iterable[Task],
    workers: Mapping[NodeId, float],
    current: Mapping[Task, NodeId],
    *,
    slack: float = 0.25,
) -> dict[Task, NodeId]:
    """Return the worker every task should have.

    Args:
        tasks: what is to be placed; repeated tasks count once.
        workers: eligible workers and their positive weights.
        current: where tasks are now; tasks and workers that are unknown are ignored.
        slack: how far from its share a worker may be, as a fraction of the share.

    Returns:
        A worker for every task, or nothing at all when there is no worker.
    """
    # In the order of their points, so that whatever is cut off below falls on all jobs alike.
    wanted = sorted((_hash(str(task)), task) for task in set(tasks))
    if not workers or not wanted:
        return {}
    total = sum(workers.values())
    shares = {worker: len(wanted) * weight / total for worker, weight in workers.items()}
    bounds = {worker: ceil((1 + slack) * share) for worker, share in shares.items()}

    placed: dict[Task, NodeId] = {}
    loads = dict.fromkeys(workers, 0)
    homeless: list[tuple[int, Task]] = []
    for point, task in wanted:
        worker = current.get(task)
        if worker is not None and worker in loads and loads[worker] < bounds[worker]:
            placed[task] = worker
            loads[worker] += 1
        else:
            homeless.append((point, task))

    # Room is opened in steps: what has no worker levels the loads before it uses the slack.
    ring = _Ring(workers)
    floors = {worker: floor(share) for worker, share in shares.items()}
    needy = sorted(
        worker
        for worker, share in shares.items()
        if loads[worker] < min((1 - slack) * share, floors[worker])
    )
    ceilings = {worker: ceil(share) for worker, share in shares.items()}
    for limits in (floors, ceilings, bounds):
        homeless = _settle(homeless, ring, placed, loads, limits)
    _fill(needy, wanted, placed, loads, shares)
    return placed


def _settle(
    homeless: Sequence[tuple[int, Task]],
    ring: _Ring,
    placed: dict[Task, NodeId],
    loads: dict[NodeId, int],
    limits: Mapping[NodeId, int],
) -> list[tuple[int, Task]]:
    """Place tasks while any worker is below its limit; return those that found no room."""
    room = sum(max(0, limits[worker] - load) for worker, load in loads.items())
    for point, task in homeless[:room]:
        worker = ring.first(point, loads, limits)
        placed[task] = worker
        loads[worker] += 1
    return list(homeless[room:])


def _fill(
    needy: Sequence[NodeId],
    wanted: Sequence[tuple[int, Task]],
    placed: dict[Task, NodeId],
    loads: dict[NodeId, int],
    shares: Mapping[NodeId, float],
) -> None:
    """Move tasks to workers that were far below their share until each has the floor of it."""
    if all(loads[worker] >= floor(shares[worker]) for worker in needy):
        return
    owned: dict[NodeId, list[Task]] = {worker: [] for worker in loads}
    for _, task in wanted:
        owned[placed[task]].append(task)
    for worker in needy:
        while loads[worker] < floor(shares[worker]):
            # Someone is above its share whenever another is below: the shares add up to all tasks.
            donor = max(sorted(loads), key=lambda other: loads[other] - shares[other])
            placed[owned[donor].pop()] = worker
            loads[donor] -= 1
            loads[worker] += 1


class _Ring:
    """The points of all workers, in order."""

    def __init__(self, workers: Mapping[NodeId, float]) -> None:
        points = sorted(
            (_hash(f"{worker}#{number}"), worker)
            for worker, weight in workers.items()
            for number in range(max(1, round(_POINTS_PER_WEIGHT * weight)))
        )
        self._points = [point for point, _ in points]
        self._workers = [worker for _, worker in points]

    def first(
        self, point: int, loads: Mapping[NodeId, int], limits: Mapping[NodeId, int]
    ) -> NodeId:
        """Return the first worker after ``point`` that is below its limit."""
        start = bisect_right(self._points, point)
        for step in range(len(self._workers)):
            worker = self._workers[(start + step) % len(self._workers)]
            if loads[worker] < limits[worker]:
                return worker
        raise AssertionError("called only while some worker has room")


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode())
