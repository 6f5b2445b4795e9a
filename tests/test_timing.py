"""The best of some rounds excuses a busy moment, and nothing that is always late."""

import pytest

from tests.timing import ROUNDS, in_the_best_round

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
