"""The frame of the calibration benchmark, and the guide that it writes."""

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.evidence import calibration, guide
from benchmarks.evidence.calibration import Experiment, Rate, Statement, Topic, bar_text, section

TEST = Statement("Sign test", "The median of the draws is 0.", "false rejections", 0.05, (0.02, 0.07))
POWER = Statement("Power", "The median of the draws is not 0.", "power", bar=(0.8, 1.0))


def draw(condition: str, seed: int) -> dict[str, tuple[float, float]]:
    """Reject in the runs whose number is a multiple of 20; find nothing elsewhere."""
    return {"Sign test": (2 * (seed % 20 == 0), 2), **({"Power": (seed % 2, 1)} if condition == "large" else {})}


def test_rates_pool_runs_store_results_and_read_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "RESULTS", tmp_path)
    topic = Topic("toy", "Toy", "A toy.", [Experiment([TEST, POWER], ["small", "large"], draw, 40)])
    lines: list[str] = []
    rates = topic.run(None, 1, lines.append)
    assert [(rate.statement.name, rate.condition, rate.rate, rate.met) for rate in rates] == [
        ("Sign test", "small", 0.05, True),
        ("Sign test", "large", 0.05, True),
        ("Power", "large", 0.5, False),
    ]
    assert rates[0].error == pytest.approx(math.sqrt(0.05 * 0.95 / 40))  # both trials of a run agree: 40 independent ones, not 80
    assert "MISSED" in lines[2]
    assert topic.stored() == rates
    text = section(topic, rates)
    assert "| Power | large | power | — | 50.0% ± 7.9 (missed) | at least 80% |" in text
    assert "- **Sign test**: The median of the draws is 0." in text


@pytest.mark.parametrize(("bar", "text"), [(None, "—"), ((0.02, 0.07), "2 to 7%"), ((0, 0.05), "at most 5%"), ((0.8, 1), "at least 80%")])
def test_bars_in_words(bar: tuple[float, float] | None, text: str) -> None:
    assert bar_text(Statement("", "", "", None, bar)) == text


def test_means_are_numbers_without_percent() -> None:
    mean = Statement("Impact", "The planted difference.", "mean", 0.17, (0.15, 0.19), is_share=False)
    rate = Rate.of(mean, "n = 500", [(0.16, 1), (0.18, 1)], judged=True)
    assert rate.met is True
    assert "| Impact | n = 500 | mean | 0.17 | 0.170 ± 0.007 | 0.15 to 0.19 |" in section(Topic("toy", "Toy", "", []), [rate])


def test_a_condition_without_a_bar_is_not_judged() -> None:
    assert Rate.of(TEST, "", [(1, 1)], judged=False).met is None
    assert np.isnan(Rate.of(TEST, "", [(0, 0)], judged=True).rate)


def test_the_guide_is_written_from_the_stored_results() -> None:
    assert guide.GUIDE.read_text(encoding="utf-8") == guide.text(), "run python -m benchmarks.evidence --write"


@pytest.mark.parametrize("topic", guide.topics(), ids=lambda topic: topic.name)
def test_every_statement_was_measured_and_meets_its_bar(topic: Topic) -> None:
    rates = topic.stored()
    declared = {statement for experiment in topic.experiments for statement in experiment.statements}
    assert {rate.statement for rate in rates} == declared
    assert [calibration.describe(rate) for rate in rates if rate.met is False] == []
