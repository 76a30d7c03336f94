"""Schedules at their ends."""

import pytest

from pronghorn.learning.schedules import SCHEDULES


@pytest.mark.parametrize(
    ("name", "fraction_done", "expected"),
    [
        ("linear", 0.0, 8.0),
        ("linear", 0.25, 6.0),
        ("linear", 1.0, 0.0),
        ("linear", 1.5, 0.0),
        ("linear", -0.5, 8.0),
        ("constant", 0.0, 8.0),
        ("constant", 1.5, 8.0),
    ],
)
def test_values(name, fraction_done, expected):
    assert SCHEDULES[name](8.0, fraction_done) == expected
