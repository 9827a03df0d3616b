"""The schedule of random faults: repeatable, of all kinds, and as often as asked."""

import numpy as np
import pytest

from benchmarks.faults.chaos.schedule import KINDS, draw_schedule


@pytest.mark.parametrize("seed", [0, 1, 20])
def test_schedule_is_repeatable(seed: int) -> None:
    assert draw_schedule(seed, 600, 30, 8) == draw_schedule(seed, 600, 30, 8)
    assert draw_schedule(seed, 600, 30, 8) != draw_schedule(seed + 1, 600, 30, 8)


def test_longer_schedule_begins_like_a_shorter_one() -> None:
    short = draw_schedule(3, 600, 30, 8)
    assert draw_schedule(3, 3600, 30, 8)[: len(short)] == short


@pytest.mark.parametrize("seed", [0, 1])
def test_faults_strike_as_often_as_asked(seed: int) -> None:
    faults = draw_schedule(seed, 200_000, 20, 5)
    waits = np.diff([0.0, *(fault.at for fault in faults)])
    assert waits.min() > 0
    assert np.mean(waits) == pytest.approx(20, rel=0.05)
    assert np.std(waits) == pytest.approx(20, rel=0.05)  # exponential waits
    counts = [sum(fault.kind == kind for fault in faults) for kind in KINDS]
    assert max(counts) - min(counts) <= 1
    assert {fault.target for fault in faults} == {"w0", "w1", "w2", "w3", "w4", "scheduler", "driver", "store"}
