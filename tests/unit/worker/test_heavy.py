"""Room and turns of heavy pages."""

from __future__ import annotations

import asyncio

from worker.heavy import LIGHT_BYTES, HeavyPages

BODY = 2 * LIGHT_BYTES


def test_a_light_body_needs_no_room() -> None:
    pages = HeavyPages(room_bytes=0)
    with pages.load() as first, pages.load() as second:
        assert first.fits(LIGHT_BYTES - 1)
        assert second.fits(LIGHT_BYTES - 1)
        assert 0 == pages.held_bytes


def test_what_grows_beyond_the_room_is_refused_but_for_the_first() -> None:
    pages = HeavyPages(room_bytes=2 * BODY)
    with pages.load() as first, pages.load() as second:
        assert first.fits(BODY)
        assert second.fits(BODY)
        assert not second.fits(BODY + 1)
        assert first.fits(10 * BODY)
        assert 11 * BODY == pages.held_bytes


def test_a_body_that_grows_is_counted_once() -> None:
    pages = HeavyPages(room_bytes=3 * BODY)
    with pages.load() as first, pages.load() as second:
        assert first.fits(BODY)
        assert all(second.fits(size) for size in range(LIGHT_BYTES, BODY, LIGHT_BYTES // 8))
        assert second.fits(2 * BODY)
        assert 3 * BODY == pages.held_bytes


def test_the_next_one_is_first_when_the_first_has_ended() -> None:
    pages = HeavyPages(room_bytes=BODY)
    with pages.load() as second:
        with pages.load() as first:
            assert first.fits(BODY)
            assert not second.fits(BODY)
        assert second.fits(3 * BODY)
    assert 0 == pages.held_bytes


def test_what_a_length_announced_has_taken_is_not_given_back_by_a_body_that_grows() -> None:
    pages = HeavyPages(room_bytes=2 * BODY)
    with pages.load() as load:
        assert load.fits(2 * BODY)
        assert load.fits(BODY)
        assert 2 * BODY == pages.held_bytes


async def test_heavy_pages_take_turns() -> None:
    pages = HeavyPages()
    order: list[str] = []

    async def read(name: str, size: int) -> None:
        with pages.load() as load:
            assert load.fits(size)
            await load.turn(size)
            await load.turn(size)  # it has it
            order.append(f"{name} begins")
            for _ in range(3):
                await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(read("one", BODY), read("two", BODY), read("small", 1))
    assert ["one begins", "small begins", "one ends", "small ends"] == order[:4]
    assert ["two begins", "two ends"] == order[4:]


async def test_the_turn_of_a_page_that_is_cancelled_goes_on() -> None:
    pages = HeavyPages()

    async def keep() -> None:
        with pages.load() as load:
            await load.turn(BODY)
            await asyncio.Event().wait()

    keeping = [asyncio.create_task(keep()) for _ in range(2)]
    await asyncio.sleep(0)
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    with pages.load() as load:
        await asyncio.wait_for(load.turn(BODY), 5)
