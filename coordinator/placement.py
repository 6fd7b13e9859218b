"""Who should own which task: weighted consistent hashing with bounded load.

Every worker stands at several points of a ring, in proportion to its weight; a task belongs to the
first worker after the task's own point that has room. Two rules keep movement small:

1. A task stays where it is while its worker is able and within its bound, ``ceil((1 + slack) *
   share)``. Weights that drift move nothing until a bound is crossed.
2. A worker more than ``slack`` below its share (one that just joined) is filled up to
   ``floor(share)``, from the workers that are furthest above theirs.

Tasks that only some workers can do are placed first, among those; the shares of the others are what
levels the sum. Points are hashes of names, so every master, whenever elected, finds the same ring.
Among workers of equal weight, one that joins or leaves moves about its own share of the tasks and
nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor

import xxhash

from common.model.ids import JobId, NodeId, Task

SLACK = 0.25
"""How far from its share a worker may be, as a fraction of the share."""
_POINTS_PER_WEIGHT = 64
"""Points of a worker of weight 1: enough that neighbours on the ring get similar stretches."""


def place(
    tasks: Iterable[Task],
    workers: Mapping[NodeId, float],
    current: Mapping[Task, NodeId],
    *,
    able: Mapping[JobId, frozenset[NodeId]] | None = None,
    slack: float = SLACK,
) -> dict[Task, NodeId]:
    """Return the worker every task should have.

    Args:
        tasks: what is to be placed; repeated tasks count once.
        workers: eligible workers and their positive weights.
        current: where tasks are now; tasks and workers that are unknown are ignored.
        able: for a job that not all workers can do, those that can.
        slack: how far from its share a worker may be, as a fraction of the share.

    Returns:
        A worker for every task that some worker can do.
    """
    everyone = frozenset(workers)
    groups: dict[frozenset[NodeId], set[Task]] = {}
    for task in tasks:
        who = everyone if able is None else able.get(task.job, everyone) & everyone
        groups.setdefault(who, set()).add(task)
    placed: dict[Task, NodeId] = {}
    loads = dict.fromkeys(workers, 0)
    # The choosier come first: whoever can go anywhere then levels what they made uneven.
    for who, group in sorted(groups.items(), key=lambda one: (len(one[0]), sorted(one[0]))):
        if who:
            weights = {worker: workers[worker] for worker in sorted(who)}
            one = _Group(group, weights, loads, slack=slack)
            placed |= one.place(current)
            for worker, load in one.loads.items():
                loads[worker] += load
    return placed


def level(count: int, weights: Mapping[NodeId, float], loads: Mapping[NodeId, int]) -> float:
    """Return the load per weight at which the workers stand once ``count`` tasks are poured in.

    As water does, they raise the lowest first; who stands above the level gets none.
    """
    order = sorted(weights, key=lambda worker: loads[worker] / weights[worker])
    weight, volume, height = 0.0, float(count), 0.0
    for number, worker in enumerate(order):
        weight += weights[worker]
        volume += loads[worker]
        height = volume / weight
        following = order[number + 1 :]
        if not following or loads[following[0]] / weights[following[0]] >= height:
            break
    return height


class _Group:
    """Tasks that the same workers can do, placed over what these have already."""

    def __init__(
        self,
        tasks: Iterable[Task],
        weights: Mapping[NodeId, float],
        base: Mapping[NodeId, int],
        *,
        slack: float,
    ) -> None:
        # In the order of their points, so that whatever is cut off below falls on all jobs alike.
        self._wanted = sorted((_hash(str(task)), task) for task in tasks)
        self._weights = weights
        self._slack = slack
        height = level(len(self._wanted), weights, base)
        self._shares = {
            worker: max(0.0, height * weight - base[worker]) for worker, weight in weights.items()
        }
        self._bounds = {
            worker: max(
                ceil(self._shares[worker]), ceil((1 + slack) * height * weight) - base[worker]
            )
            for worker, weight in weights.items()
        }
        self.loads = dict.fromkeys(weights, 0)
        self._placed: dict[Task, NodeId] = {}

    def place(self, current: Mapping[Task, NodeId]) -> dict[Task, NodeId]:
        """Return a worker for each of the tasks."""
        homeless: list[tuple[int, Task]] = []
        for point, task in self._wanted:
            worker = current.get(task)
            if worker in self.loads and self.loads[worker] < self._bounds[worker]:
                self._put(task, worker)
            else:
                homeless.append((point, task))
        # Room is opened in steps: what has no worker levels the loads before it uses the slack.
        floors = {worker: floor(share) for worker, share in self._shares.items()}
        ceilings = {worker: ceil(share) for worker, share in self._shares.items()}
        needy = sorted(
            worker
            for worker, share in self._shares.items()
            if self.loads[worker] < min((1 - self._slack) * share, floors[worker])
        )
        ring = _Ring(self._weights)
        for limits in (floors, ceilings, self._bounds):
            homeless = self._settle(homeless, ring, limits)
        self._fill(needy)
        return self._placed

    def _put(self, task: Task, worker: NodeId) -> None:
        self._placed[task] = worker
        self.loads[worker] += 1

    def _settle(
        self, homeless: Sequence[tuple[int, Task]], ring: _Ring, limits: Mapping[NodeId, int]
    ) -> list[tuple[int, Task]]:
        """Place tasks while any worker is below its limit; return those that found no room."""
        room = sum(max(0, limits[worker] - load) for worker, load in self.loads.items())
        for point, task in homeless[:room]:
            self._put(task, ring.first(point, self.loads, limits))
        return list(homeless[room:])

    def _fill(self, needy: Sequence[NodeId]) -> None:
        """Move tasks to workers that were far below their share until each has the floor of it."""
        shares, loads = self._shares, self.loads
        if all(loads[worker] >= floor(shares[worker]) for worker in needy):
            return
        owned: dict[NodeId, list[Task]] = {worker: [] for worker in loads}
        for _, task in self._wanted:
            owned[self._placed[task]].append(task)
        for worker in needy:
            while loads[worker] < floor(shares[worker]):
                # Someone is above its share whenever another is below: they add up to all tasks.
                donor = max(sorted(loads), key=lambda other: loads[other] - shares[other])
                self._placed[owned[donor].pop()] = worker
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
