"""Tasks that outlive a request."""

import asyncio

import pytest

from api.background import BackgroundTasks
from shared.tasks import cancel


async def test_a_task_that_loses_its_first_cancellations_is_ended() -> None:
    num_lost = 0

    async def stubborn() -> None:
        nonlocal num_lost
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                num_lost += 1
                if num_lost == 3:
                    raise

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel(task)
    assert task.cancelled()


async def test_closing_waits_for_what_runs() -> None:
    tasks = BackgroundTasks()
    done: list[int] = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(1)

    tasks.spawn(work())
    await tasks.close()
    assert done == [1]


async def test_an_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise RuntimeError("broken")

    tasks = BackgroundTasks()
    tasks.spawn(work())
    await tasks.close()
    assert "background work failed" in caplog.text
