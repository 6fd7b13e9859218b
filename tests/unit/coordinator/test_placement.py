"""Placement: bounded, balanced, least-moving."""

from __future__ import annotations

from math import ceil, floor
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from common.model.ids import JobId, NodeId, Task
from coordinator.placement import level, place

SLACK = 0.25

node_ids = st.integers(0, 40).map(lambda number: NodeId(f"worker-{number}"))
weights = st.dictionaries(node_ids, st.sampled_from([0.125, 0.5, 1.0, 1.0, 2.0]), max_size=12)
jobs = st.dictionaries(st.integers(0, 9), st.integers(1, 64), max_size=5)


def tasks_of(jobs: dict[int, int]) -> list[Task]:
    return [Task(JobId(f"job-{job}"), shard) for job, n in jobs.items() for shard in range(n)]


def one_job(shards: int) -> list[Task]:
    return [Task(JobId("job"), shard) for shard in range(shards)]


def equal(workers: int) -> dict[NodeId, float]:
    return {NodeId(f"worker-{number}"): 1.0 for number in range(workers)}


def loads(placed: dict[Task, NodeId]) -> dict[NodeId, int]:
    counted: dict[NodeId, int] = {}
    for worker in placed.values():
        counted[worker] = counted.get(worker, 0) + 1
    return counted


def moved(before: dict[Task, NodeId], after: dict[Task, NodeId]) -> int:
    return sum(1 for task, worker in before.items() if after[task] != worker)


@given(jobs, weights, st.integers(0, 2**32))
def test_every_task_has_an_eligible_worker_within_its_bound_whatever_was_before(
    jobs: dict[int, int], weights: dict[NodeId, float], seed: int
) -> None:
    random = Random(seed)
    tasks = tasks_of(jobs)
    strangers = [NodeId("gone"), *weights]
    current = {task: random.choice(strangers) for task in tasks if random.random() < 0.8}

    placed = place(tasks, weights, current, slack=SLACK)

    assert set(placed) == (set(tasks) if weights else set())
    total = sum(weights.values())
    for worker, load in loads(placed).items():
        assert load <= ceil((1 + SLACK) * len(tasks) * weights[worker] / total)


@given(jobs, weights)
def test_a_placement_is_repeatable_and_stays_as_it_is(
    jobs: dict[int, int], weights: dict[NodeId, float]
) -> None:
    tasks = tasks_of(jobs)
    placed = place(tasks, weights, {})
    assert placed == place(reversed(tasks), dict(reversed(weights.items())), {})
    assert placed == place(tasks, weights, placed)


@given(st.integers(1, 400), st.integers(1, 20))
def test_a_worker_that_joins_gets_the_floor_of_its_share_and_moves_little_more(
    shards: int, workers: int
) -> None:
    tasks = one_job(shards)
    before = place(tasks, equal(workers), {})
    after = place(tasks, equal(workers + 1), before)

    assert min(loads(after).get(worker, 0) for worker in equal(workers + 1)) >= floor(
        shards / (workers + 1)
    ) * (1 - SLACK)
    assert loads(after).get(NodeId(f"worker-{workers}"), 0) >= floor(shards / (workers + 1))
    assert moved(before, after) <= ceil(shards / workers)
    if shards >= 20:
        assert moved(before, after) <= (1 / workers + 0.05) * shards


@given(st.integers(20, 400), st.integers(2, 20), st.data())
def test_a_worker_that_leaves_moves_its_own_share_only(
    shards: int, workers: int, data: st.DataObject
) -> None:
    tasks = one_job(shards)
    before = place(tasks, equal(workers), {})
    gone = data.draw(st.sampled_from(sorted(equal(workers))))
    rest = {worker: weight for worker, weight in equal(workers).items() if worker != gone}
    after = place(tasks, rest, before)

    assert moved(before, after) <= (1 / workers + 0.05) * shards


@given(st.integers(40, 300), st.lists(st.booleans(), min_size=1, max_size=12))
def test_movement_stays_small_along_a_history_of_joins_and_leaves(
    shards: int, joins: list[bool]
) -> None:
    tasks = one_job(shards)
    workers = equal(4)
    placed = place(tasks, workers, {})
    for number, joining in enumerate(joins):
        before, count = placed, len(workers)
        if joining:
            workers = {**workers, NodeId(f"new-{number}"): 1.0}
        elif count > 1:
            workers = dict(list(workers.items())[1:])
        placed = place(tasks, workers, before)
        assert moved(before, placed) <= (1 / min(count, len(workers)) + 0.05) * shards


def test_drifting_weights_move_nothing_within_the_slack() -> None:
    tasks = one_job(64)
    before = place(tasks, equal(4), {})
    drifted = dict(zip(equal(4), (1.0, 0.95, 1.1, 0.9), strict=True))
    assert place(tasks, drifted, before) == before


def test_an_overloaded_worker_gives_tasks_away_when_its_weight_falls() -> None:
    before = place(one_job(64), equal(4), {})
    fallen = {**equal(4), NodeId("worker-0"): 0.25}
    after = place(one_job(64), fallen, before)
    assert loads(after)[NodeId("worker-0")] <= ceil(1.25 * 64 * 0.25 / 3.25)


def test_weights_shift_the_shares() -> None:
    workers = {NodeId("big"): 3.0, NodeId("small"): 1.0}
    assert loads(place(one_job(64), workers, {})) == {"big": 48, "small": 16}


def test_the_second_worker_of_a_two_shard_job_is_not_left_idle() -> None:
    both = one_job(2)
    alone = place(both, equal(1), {})
    assert loads(place(both, equal(2), alone)) == {"worker-0": 1, "worker-1": 1}


def test_without_workers_or_tasks_nothing_is_placed() -> None:
    assert place(one_job(3), {}, {}) == {}
    assert place([], equal(3), {}) == {}


# ------------------------------------------------------------------ weights, and who can do what

heavy = st.lists(st.sampled_from([0.25, 0.5, 0.75, 1.0, 1.5, 2.0]), min_size=2, max_size=12)


def named(values: list[float]) -> dict[NodeId, float]:
    return {NodeId(f"worker-{number}"): value for number, value in enumerate(values)}


@given(st.integers(40, 400), heavy)
def test_a_weighted_worker_that_joins_moves_its_share_and_five_percent(
    shards: int, values: list[float]
) -> None:
    tasks, after_weights = one_job(shards), named(values)
    joining = NodeId(f"worker-{len(values) - 1}")
    before_weights = {worker: one for worker, one in after_weights.items() if worker != joining}
    before = place(tasks, before_weights, {})
    share = after_weights[joining] / sum(values)
    assert moved(before, place(tasks, after_weights, before)) <= (share + 0.05) * shards


@given(st.integers(40, 400), heavy)
def test_a_weighted_worker_that_leaves_moves_its_share_and_five_percent(
    shards: int, values: list[float]
) -> None:
    tasks, before_weights = one_job(shards), named(values)
    leaving = NodeId("worker-0")
    after_weights = {worker: one for worker, one in before_weights.items() if worker != leaving}
    before = place(tasks, before_weights, {})
    share = before_weights[leaving] / sum(values)
    assert moved(before, place(tasks, after_weights, before)) <= (share + 0.05) * shards


@given(jobs, st.lists(weights.filter(bool), min_size=1, max_size=6))
def test_placing_settles_at_once_whatever_the_weights_become(
    jobs: dict[int, int], changes: list[dict[NodeId, float]]
) -> None:
    tasks, placed = tasks_of(jobs), {}
    for weights in changes:
        placed = place(tasks, weights, placed)
        assert place(tasks, weights, placed) == placed


@given(jobs, weights.filter(bool), st.data())
def test_every_task_somebody_can_do_is_done_by_one_who_can(
    jobs: dict[int, int], weights: dict[NodeId, float], data: st.DataObject
) -> None:
    tasks = tasks_of(jobs)
    subsets = st.frozensets(st.sampled_from(sorted(weights)))
    able = {JobId(f"job-{job}"): data.draw(subsets) for job in jobs if data.draw(st.booleans())}
    placed = place(tasks, weights, {}, able=able)
    assert set(placed) == {task for task in tasks if able.get(task.job, weights)}
    for task, worker in placed.items():
        assert worker in able.get(task.job, weights)
    assert place(tasks, weights, placed, able=able) == placed


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 6), st.integers(1, 6))
def test_who_can_do_little_else_gets_less_of_what_everybody_can(
    choosy: int, plain: int, some: int, others: int
) -> None:
    """The first workers alone can do one job: the sum of both is as level as that allows."""
    workers = equal(some + others)
    few = frozenset(list(workers)[:some])
    tasks = [Task(JobId("choosy"), n) for n in range(choosy)]
    tasks += [Task(JobId("plain"), n) for n in range(plain)]
    placed = place(tasks, workers, {}, able={JobId("choosy"): few})
    counted = loads(placed)
    fair = max((choosy + plain) / len(workers), choosy / some)
    for worker in workers:
        assert counted.get(worker, 0) <= ceil((1 + SLACK) * fair) + 1


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 4)), min_size=1), st.integers(0, 99))
def test_the_level_is_where_what_is_poured_in_stands(
    vessels: list[tuple[int, float]], count: int
) -> None:
    loads = {NodeId(str(n)): load for n, (load, _) in enumerate(vessels)}
    weights = {NodeId(str(n)): weight for n, (_, weight) in enumerate(vessels)}
    height = level(count, weights, loads)
    poured = sum(max(0.0, height * weights[node] - loads[node]) for node in weights)
    assert abs(poured - count) < 1e-6
