"""A client that leaves while its handler waits for something else."""

import asyncio

from nsquark.http.server.departure import Departure


async def test_a_client_that_stays_is_not_gone_when_the_time_is_up() -> None:
    departure = Departure()
    assert not await departure.wait(0.01)
    assert not departure.happened


async def test_a_wait_ends_when_the_client_leaves() -> None:
    departure = Departure()
    waiting = asyncio.create_task(departure.wait(60))
    await asyncio.sleep(0)
    departure.tell()
    assert await waiting


async def test_news_end_a_wait_and_the_client_is_still_there() -> None:
    departure = Departure()
    news = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(departure.wait(60, news))
    await asyncio.sleep(0)
    news.set_result(None)
    assert not await waiting
    departure.tell()  # with no wait under way
    assert await departure.wait(60)


async def test_a_departure_after_the_news_does_not_disturb_them() -> None:
    departure = Departure()
    news = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(departure.wait(60, news))
    await asyncio.sleep(0)
    news.set_result(None)
    departure.tell()
    assert await waiting
