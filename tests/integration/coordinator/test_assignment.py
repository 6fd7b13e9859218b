"""Tasks go to live workers, and away from those that drain or vanish."""

from __future__ import annotations

from structlog.testing import capture_logs

from common.model.ids import NodeId
from common.model.job import JobState
from tests.integration.coordinator.rig import Rig, Worker
from tests.support.waiting import until


async def loads(rig: Rig) -> dict[str, int]:
    _, assigned = await rig.coord.assignments.load()
    return {node: sum(map(len, one.tasks.values())) for node, one in assigned.items()}


async def until_loads(rig: Rig, wanted: dict[str, int]) -> None:
    async def are_so() -> bool:
        return await loads(rig) == wanted

    await until(are_so)


async def until_owned(worker: Worker, count: int) -> None:
    async def are_owned() -> bool:
        return len(worker.owned) == count

    await until(are_owned)


async def start(rig: Rig, **spec: object) -> None:
    rig.master()
    await rig.submit([], keep_open=True, shards=8, **spec)
    await rig.until_state(JobState.RUNNING)


async def test_tasks_are_shared_evenly_as_workers_come_and_vanish(rig: Rig) -> None:
    await start(rig)
    await rig.worker({}, "w1")
    await until_loads(rig, {"w1": 8})
    second = await rig.worker({}, "w2")
    await until_loads(rig, {"w1": 4, "w2": 4})
    _, before = await rig.coord.assignments.load()

    with capture_logs() as logs:
        await second.end()
        await until_loads(rig, {"w1": 8})

        async def is_listed_as_departed() -> bool:
            nodes = {view.info.id: view for view in await rig.coord.members.list()}
            return nodes["w2"].left_at is not None

        await until(is_listed_as_departed)
    vanished = [entry["node"] for entry in logs if entry["event"] == "node.vanished"]
    assert vanished == ["w2"]
    _, after = await rig.coord.assignments.load()
    kept = set(before[NodeId("w1")].tasks["job"])
    assert kept <= set(after[NodeId("w1")].tasks["job"])


async def test_a_worker_that_leaves_in_good_order_is_not_called_vanished(rig: Rig) -> None:
    await start(rig)
    await rig.worker({}, "w1")
    second = await rig.worker({}, "w2")
    await until_loads(rig, {"w1": 4, "w2": 4})
    with capture_logs() as logs:
        await rig.coord.members.leave(second.session, second.info)
        await until_loads(rig, {"w1": 8})
    assert [entry for entry in logs if entry["event"] == "node.vanished"] == []


async def test_a_worker_that_drains_gets_nothing_and_one_that_degrades_keeps_what_it_has(
    rig: Rig,
) -> None:
    await start(rig)
    await rig.worker({}, "w1")
    second = await rig.worker({}, "w2")
    await until_loads(rig, {"w1": 4, "w2": 4})
    await until_owned(second, 4)
    await second.set_state("degraded")
    await rig.worker({}, "w3")
    await until_loads(rig, {"w1": 2, "w2": 4, "w3": 2})
    await second.set_state("draining")
    await until_loads(rig, {"w1": 4, "w2": 0, "w3": 4})


async def test_a_worker_of_more_weight_gets_more(rig: Rig) -> None:
    await start(rig)
    first = await rig.worker({}, "w1")
    await rig.worker({}, "w2")
    await until_loads(rig, {"w1": 4, "w2": 4})
    await first.set_weight(4.0)
    await until_loads(rig, {"w1": 6, "w2": 2})


async def test_the_tasks_of_a_job_that_is_over_are_taken_from_all(rig: Rig) -> None:
    await start(rig)
    await rig.worker({}, "w1")
    await until_loads(rig, {"w1": 8})
    await rig.change("job", keep_open=False)
    await rig.until_state(JobState.FINISHED)
    await until_loads(rig, {"w1": 0})


async def test_a_stalled_worker_loses_its_tasks_to_one_that_can_work_on_them(rig: Rig) -> None:
    await start(rig)
    first = await rig.worker({}, "w1")
    second = await rig.worker({}, "w2")
    await until_loads(rig, {"w1": 4, "w2": 4})
    await until_owned(second, 4)
    await second.say(state="degraded", is_stalled=True)
    await until_loads(rig, {"w1": 8, "w2": 0})
    await until_owned(first, 8)
    await first.say(state="degraded", is_stalled=True)
    await rig.submit([], job="other", keep_open=True, shards=1)
    await rig.until_state(JobState.RUNNING, job="other")
    await until_loads(rig, {"w1": 8, "w2": 0})


async def test_a_job_that_stores_responses_goes_only_to_workers_with_a_folder_for_them(
    rig: Rig,
) -> None:
    with capture_logs() as logs:
        await start(rig, store="warc")
        await rig.worker({}, "w1")
        await until_loads(rig, {"w1": 0})

        async def is_said() -> list[str]:
            said = [entry for entry in logs if entry["event"] == "job.without_worker"]
            return [entry["reason"] for entry in said if "w1" in entry["reason"]]

        assert "--warc-dir" in (await until(is_said))[0]
        second = await rig.worker({}, "w2")
        await second.say(abilities=("warc",))
        await until_loads(rig, {"w1": 0, "w2": 8})
    assert [entry["job"] for entry in logs if entry["event"] == "job.has_worker"] == ["job"]

    await second.say(refused=("job",), reasons=("job job: the disk is full",))
    await until_loads(rig, {"w1": 0, "w2": 0})
