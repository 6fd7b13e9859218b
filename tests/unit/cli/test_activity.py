"""The time a crawl was at work: without its servers' start and the checks at its end."""

from __future__ import annotations

from common.model import counters
from crawlctl.activity import Activity


def counted(**some: int) -> dict[str, int]:
    return dict.fromkeys(counters.NAMES, 0) | some


def test_time_counts_from_the_first_work_to_the_last() -> None:
    activity = Activity()
    activity.look(counted(), 100.0)
    activity.look(counted(discovered=1, queued=1), 101.0)  # offered; workers are starting
    assert 0.0 == activity.seconds
    activity.look(counted(discovered=2, in_flight=1, fetched=1), 102.0)
    assert 1.0 == activity.seconds
    activity.look(counted(discovered=2, delayed=1, fetched=1), 105.0)  # a delay is work too
    activity.look(counted(discovered=2, fetched=2), 106.0)
    assert 5.0 == activity.seconds
    activity.look(counted(discovered=2, fetched=2), 109.0)  # the master makes sure
    assert 5.0 == activity.seconds


def test_a_start_that_finds_nothing_to_do_took_no_time() -> None:
    activity = Activity()
    for now in (1.0, 2.0):
        activity.look(counted(discovered=3, fetched=3), now)
    assert 0.0 == activity.seconds


def test_what_a_former_start_left_in_flight_is_no_work_of_this_one() -> None:
    activity = Activity()
    for now in (1.0, 2.0, 3.0):
        activity.look(counted(discovered=3, fetched=2, in_flight=1), now)
    assert 0.0 == activity.seconds
    activity.look(counted(discovered=3, fetched=3), 4.0)
    assert 1.0 == activity.seconds
