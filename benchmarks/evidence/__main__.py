"""Measure the rates of one topic or of all, and write the guide."""

import argparse
import os
import sys

from benchmarks.evidence.calibration import describe
from benchmarks.evidence.guide import GUIDE, NAMES, load, text, topics


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("topics", nargs="*", choices=[*NAMES, []], help="topics to measure, by default all")
    parser.add_argument("--runs", type=int, help="datasets for each condition, by default those of each experiment")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true", help="write the guide from the stored results, and measure nothing")
    options = parser.parse_args()
    rates = []
    for topic in [load(name) for name in options.topics] or topics():
        if options.write:
            rates += topic.stored()
        else:
            print(f"{topic.title}\n")
            rates += topic.run(options.runs, options.processes, lambda line: print(f"  {line}", flush=True))
    GUIDE.write_text(text(), encoding="utf-8")
    missed = [rate for rate in rates if rate.met is False]
    print(f"\n{len(rates)} rates, {len(missed)} outside their bars" + "".join(f"\n  {describe(rate)}" for rate in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
