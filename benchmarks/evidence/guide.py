"""The guide on evidence: written from the stored results of all topics."""

from importlib import import_module
from pathlib import Path

from benchmarks.evidence.calibration import Topic, section

GUIDE = Path(__file__).resolve().parents[2] / "dfact" / "guides" / "evidence.md"
NAMES = ("effects", "items", "factors", "scales", "stability", "tensors", "sizes", "classes")
"""Topics in the order of their sections; dependence and incomplete join them once all of their rates are measured."""

PREAMBLE = """\
# How often is a printed statement right?

dfact prints p values, intervals, flags and chosen sizes. This page states for each of them what it estimates or tests, and how
often it was right on simulated data whose truth is known. `python -m benchmarks.evidence` measures the rates and writes the
tables.

- A *test* at a nominal 5% should reject a true hypothesis in 2 to 7% of datasets. *Power* is the share of rejections of a
  false one.
- An *interval* of 95% should contain the true value in 92 to 98% of datasets.
- A *rule* chooses a size. The table has the share of datasets in which it chose the true one.

The error after ± is the standard error of the simulation. The simulations are simpler than real data: they show that a procedure
can be trusted when its assumptions hold, not that the assumptions hold for your data.
"""


def topics() -> list[Topic]:
    """Return the topics that there are."""
    folder = Path(__file__).parent
    return [load(name) for name in NAMES if (folder / f"{name}.py").exists()]


def load(name: str) -> Topic:
    """Import a topic's module."""
    module = import_module(f"benchmarks.evidence.{name}")
    return Topic(name, module.TITLE, module.INTRODUCTION, module.EXPERIMENTS)


def text() -> str:
    """Return the guide with the stored results."""
    stored = [(topic, topic.stored()) for topic in topics()]
    return "\n".join([PREAMBLE, *(section(topic, rates) for topic, rates in stored if rates)])
