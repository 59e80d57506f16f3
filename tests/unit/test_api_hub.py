"""The buffer of one stream."""

import asyncio

from api.hub import Subscription


async def test_messages_come_out_in_order_and_once() -> None:
    subscription = Subscription(3)
    for message in "abc":
        subscription.push(message)
    assert await subscription.wait(0)
    assert list(subscription.take()) == ["a", "b", "c"]
    assert not await subscription.wait(0)


async def test_overflow_empties_the_buffer_and_holds_nothing_until_the_log_is_read() -> None:
    subscription = Subscription(2)
    for message in "abcd":
        subscription.push(message)
    assert subscription.is_stale
    assert not subscription.take()
    subscription.is_stale = False
    subscription.push("e")
    assert list(subscription.take()) == ["e"]


async def test_a_waiting_reader_is_woken_by_all_that_concerns_it() -> None:
    for wake in (lambda s: s.push("a"), Subscription.mark_stale, Subscription.close):
        subscription = Subscription(2)
        waiting = asyncio.create_task(subscription.wait(60))
        await asyncio.sleep(0)
        assert not waiting.done()
        wake(subscription)
        assert await waiting
