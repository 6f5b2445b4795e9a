"""What the console's figures are judged by."""

from __future__ import annotations

import pytest

from benchmarks.console import figure


@pytest.mark.parametrize(
    ("better", "values", "met"),
    [
        ("less", (900.0, 1_000.0, 1_900.0), True),
        ("less", (900.0, 1_001.0, 1_001.0), False),
        ("more", (1_000.0, 400.0, 1_200.0), True),
        ("more", (999.0, 400.0, 1_200.0), False),
    ],
)
def test_the_median_decides_whether_a_goal_is_met(better: str, values: tuple[float, ...], met: bool) -> None:
    found = figure("300 tasks, drawn", "ms", 1_000, "less" if better == "less" else "more", *values)
    assert found.met is met
    assert found.line().endswith("MISSED") is not met
    assert f"({min(values):,.0f} … {max(values):,.0f})" in found.line()
