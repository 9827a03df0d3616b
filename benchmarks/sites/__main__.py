"""Fits across three sites and a coordinator, on hosts with disks of their own (network namespaces), over TLS.

    python -m benchmarks.sites [--rows 20000] [--columns 100] [--repeats 3] [--only bits leaks faults costs]

- bits: every fit has the bits of the fit to the concatenated data, at the coordinator and in the row factors of the sites.
- leaks: the same fits through a man in the middle that has certificates for both ends. All packets are captured, and row labels,
  answers, confounders and row factors of single rows are looked for in the plaintext of everything that is said, both ways.
- faults: a site and the coordinator are killed, and the network is cut.
- costs: messages, bytes and seconds of a pass, for three hosts, and for 20 sites in one process.

It needs Linux, root, iproute2, openssl, and gRPC. Exits with code 1 if a bar is missed.
"""

import argparse
import sys
import warnings

from benchmarks.common import report
from benchmarks.faults.namespaces import available
from benchmarks.sites.checks import Benchmark
from benchmarks.sites.sites import Network

PARTS = ("bits", "leaks", "faults", "costs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each site")
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3, help="runs of which the costs are medians")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="parts; costs need leaks, which count the messages")
    options = parser.parse_args()
    possible, reason = available()
    if not possible:
        sys.exit(reason)
    warnings.filterwarnings("ignore", ".*did not converge", UserWarning)
    with Network(options.rows, options.columns) as network:
        benchmark = Benchmark(network)
        benchmark.hidden_disks()
        if "bits" in options.only:
            benchmark.bits()
        recorded = benchmark.leaks() if "leaks" in options.only else []
        if "faults" in options.only:
            benchmark.faults()
        if "costs" in options.only:
            report("federation costs", benchmark.costs(recorded, options.repeats))
    report("federation", benchmark.checks.rows)
    return 0 if benchmark.checks.passed else 1


if __name__ == "__main__":
    sys.exit(main())
