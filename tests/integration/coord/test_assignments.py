"""Assignments in a real etcd: only what changed is written, and only in the present term."""

from __future__ import annotations

import asyncio

import pytest

from common.coord import Assignment, Coord
from common.model.errors import NotMaster
from common.model.ids import JobId, NodeId, Term
from tests.integration.coord.conftest import OpenSession

A, B = NodeId("a"), NodeId("b")
JOB = JobId("j")


@pytest.fixture
async def term(coord: Coord, session_on: OpenSession) -> Term:
    return await coord.election.campaign(await session_on(coord.etcd), node=NodeId("m"))


async def test_only_what_changed_is_written(coord: Coord, term: Term) -> None:
    await coord.assignments.publish({A: {JOB: [2, 1]}, B: {JOB: [3]}}, version=1, term=term)
    first = await coord.etcd.get_prefix(coord.keys.assignments)
    await coord.assignments.publish({A: {JOB: [1, 2]}, B: {JOB: [3, 4]}}, version=2, term=term)
    second = await coord.etcd.get_prefix(coord.keys.assignments)

    key = coord.keys.assignment(A)
    assert first.items[key] == second.items[key]
    assert await coord.assignments.load() == (
        2,
        {
            A: Assignment(version=1, tasks={"j": [1, 2]}),
            B: Assignment(version=2, tasks={"j": [3, 4]}),
        },
    )
    await coord.assignments.publish({A: {JOB: [1, 2]}, B: {JOB: [3, 4]}}, version=2, term=term)
    assert (await coord.etcd.get_prefix(coord.keys.assignments)).items == second.items


async def test_a_node_that_is_gone_loses_its_key(coord: Coord, term: Term) -> None:
    await coord.assignments.publish({A: {JOB: [1]}, B: {}}, version=1, term=term)
    await coord.assignments.publish({B: {}}, version=2, term=term)
    assert await coord.assignments.load() == (2, {B: Assignment(version=1, tasks={})})


async def test_only_the_present_term_publishes(coord: Coord, term: Term) -> None:
    await coord.assignments.publish({A: {JOB: [1]}}, version=1, term=term)
    await coord.election.resign(term)
    for version in (1, 2):
        with pytest.raises(NotMaster):
            await coord.assignments.publish({A: {JOB: [1]}}, version=version, term=term)
    assert await coord.assignments.load() == (1, {A: Assignment(version=1, tasks={"j": [1]})})


async def test_an_assignment_larger_than_a_request_is_published_whole(
    coord: Coord, term: Term
) -> None:
    wishes = {
        NodeId(f"n{node}"): {JobId(f"job-{node}-{number}"): list(range(60)) for number in range(60)}
        for node in range(150)
    }
    await coord.assignments.publish(wishes, version=1, term=term)
    version, found = await coord.assignments.load()
    assert version == 1
    assert {node: assignment.tasks for node, assignment in found.items()} == wishes


async def test_two_publications_at_once_do_not_mix(coord: Coord, term: Term) -> None:
    wishes = [{A: {JOB: [number]}, B: {JOB: [number]}} for number in range(4)]
    await asyncio.gather(
        *(
            coord.assignments.publish(one, version=number + 1, term=term)
            for number, one in enumerate(wishes)
        )
    )
    _, found = await coord.assignments.load()
    assert found[A].tasks == found[B].tasks
