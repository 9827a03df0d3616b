"""Damaged and hostile inputs for everything that reads files: each is read correctly or refused with a message.

    python -m benchmarks.fuzz [--count 10000] [--seed 0] [--targets csv ...] [--workers 2] [--one NUMBER]

Every input is a valid one with a few mutations: bytes (flipped, removed, inserted, doubled), files (deleted, emptied,
swapped), files in an archive and their XML, JSON (other types, huge and negative numbers, NaN, deep nesting), cells and
encodings of tables, of dictionaries and of codebooks. Command lines and job files are generated from the declarations of
all parameters. Each input is read in a worker process with limits of time and address space. Results are compared with
those of a reader that shares no code with dfact. A store whose chunks were mutated must give its original values, a damaged
checkpoint the result of an uninterrupted computation. A command that fails must leave nothing, one that succeeds its
outputs alone. An interrupt prints the table of the inputs so far.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.common import exit_code, report
from benchmarks.fuzz.runner import TARGETS, Bench, Worker, run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="*", default=list(TARGETS), choices=list(TARGETS), metavar="NAME")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="number of processes")
    parser.add_argument(
        "--one", type=int, metavar="NUMBER", help="try this input of the first target alone, in this process, and print the verdict"
    )
    arguments = parser.parse_args()
    if arguments.one is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(*Bench(Path(folder)).try_one(arguments.targets[0], arguments.seed, arguments.one))
        return 0
    jobs = [(arguments.targets[i % len(arguments.targets)], arguments.seed, i) for i in range(arguments.count)]
    counts = {name: {"target": name, "inputs": 0, "right": 0, "refused": 0, "failed": 0} for name in arguments.targets}
    workers = [Worker() for _ in range(arguments.workers)]
    try:
        for (name, seed, number), verdict, message in run(jobs, workers):
            counts[name]["inputs"] += 1
            counts[name][verdict] += 1
            if verdict == "failed":
                print(f"{name}, --seed {seed} --one {number}: {message}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted: the table has the inputs so far", file=sys.stderr)
    finally:
        for worker in workers:
            worker.close()
    failures = sum(row["failed"] for row in counts.values())
    count = sum(row["inputs"] for row in counts.values())
    thresholds = [(f"of {count} inputs none fails: each is read correctly or refused with a message", failures == 0)]
    report("fuzz", list(counts.values()), thresholds)
    return exit_code(thresholds)


if __name__ == "__main__":
    sys.exit(main())
