"""The best of some rounds excuses a busy moment, the loop's clock a pause; neither what is always late."""

import asyncio
import time

import pytest

from tests.timing import ROUNDS, in_the_best_round, paused_s, takes_less_than

pytestmark = pytest.mark.anyio


async def rounds_of(late_in: int) -> int:
    rounds = 0

    @in_the_best_round
    async def measured() -> None:
        nonlocal rounds
        rounds += 1
        assert rounds > late_in

    await measured()
    return rounds


@pytest.mark.parametrize("late_in", range(ROUNDS))
async def test_a_busy_moment_is_excused(late_in: int) -> None:
    assert await rounds_of(late_in) == late_in + 1


async def test_what_is_late_in_every_round_fails() -> None:
    with pytest.raises(AssertionError):
        await rounds_of(ROUNDS)


async def test_what_is_wrong_and_not_late_fails_at_once() -> None:
    class Late(AssertionError):
        pass

    rounds = 0

    async def wrong() -> None:
        nonlocal rounds
        rounds += 1
        raise AssertionError

    with pytest.raises(AssertionError):
        await in_the_best_round(wrong, late=Late)()
    assert rounds == 1


@pytest.mark.parametrize("slow_rounds", range(ROUNDS + 1))
def test_work_that_is_slow_in_every_round_takes_too_long(slow_rounds: int) -> None:
    rounds, now = 0, 0.0

    def work() -> None:
        nonlocal rounds, now
        rounds += 1
        now += 3 if rounds <= slow_rounds else 1

    assert takes_less_than(2, work, lambda: now) is (slow_rounds < ROUNDS)


async def paused() -> None:
    """As when the machine does not run: real time passes, and nothing else does."""
    time.sleep(0.3)


async def test_a_pause_of_the_machine_is_no_time_for_a_deadline() -> None:
    loop = asyncio.get_running_loop()
    told, heard = asyncio.Queue[str](), []

    async def talk() -> None:
        for word in ("a", "b", "c"):
            told.put_nowait(word)
            await paused()
            await asyncio.sleep(0)

    began, before, talking = loop.time(), paused_s(), asyncio.create_task(talk())
    async with asyncio.timeout(0.2):
        while len(heard) < 3:
            heard.append(await told.get())
    await talking
    assert loop.time() - began < 0.2
    assert paused_s() - before > 0.8


async def test_time_that_is_waited_passes_as_it_does() -> None:
    loop = asyncio.get_running_loop()
    began, began_at = loop.time(), time.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await asyncio.Event().wait()
    assert loop.time() - began >= 0.1
    assert time.monotonic() - began_at >= 0.1
