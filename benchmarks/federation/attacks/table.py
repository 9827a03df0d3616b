"""The table of all attacks."""

from benchmarks.federation.attacks import audited, dishonest, integers, thresholds, unions
from benchmarks.federation.attacks.harness import ATTACKS

__all__ = ["ATTACKS", "audited", "dishonest", "integers", "thresholds", "unions"]
