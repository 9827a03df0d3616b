"""The table of all attacks."""

from benchmarks.sites.attacks import audited, dishonest, integers, thresholds, unions
from benchmarks.sites.attacks.harness import ATTACKS

__all__ = ["ATTACKS", "audited", "dishonest", "integers", "thresholds", "unions"]
