"""The checks of fits across hosts, each against its bar."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.sites import canaries, costs, recording
from benchmarks.sites.cases import CASES, SITES, Case, description_text, row_factors, same_result
from benchmarks.sites.faults import LONG, TILED, Fault, faults, suffer
from benchmarks.sites.recording import Recorded
from benchmarks.sites.sites import COORDINATOR, Network, Run

CUTS = (5.0, 40.0)
"""Seconds: shorter and longer than it takes to notice a dead connection."""


@dataclass
class Checks:
    """What has been checked, each against its bar."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, check: str, bar: str, found: object, *, passed: bool) -> None:
        verdict = "PASS" if passed else "FAIL"
        self.rows.append({"check": check, "bar": bar, "found": str(found), "verdict": verdict})
        print(f"{verdict}  {check}: {found} (bar: {bar})", flush=True)

    @property
    def passed(self) -> bool:
        return all(row["verdict"] == "PASS" for row in self.rows)


class Benchmark:
    """The hosts, the results on the concatenated data, and the checks."""

    def __init__(self, network: Network, cases: Sequence[Case] = CASES) -> None:
        self.network, self.cases, self.checks = network, cases, Checks()
        self._pooled: dict[str, Any] = {}

    def pooled(self, case: Case) -> Any:
        """Return the result of a case on the concatenated data."""
        if case.name not in self._pooled:
            self._pooled[case.name] = case.pooled(self.network.whole(case.data), executor="threads")
        return self._pooled[case.name]

    def same_bits(self, run: Run) -> bool:
        """Return whether the result of a run has the bits of that on the concatenated data."""
        expected = self.pooled(run.case)
        if run.case.model is None:
            return description_text(expected, self.network.folder / "pooled.csv") == run.output.read_text()
        rows = np.concatenate([row_factors(run.site_model(site)) for site in SITES])
        same_rows = rows.tobytes() == row_factors(expected).tobytes()
        return same_rows and same_result(run.model(), expected, len(rows))

    def bits(self) -> None:
        """Check every case across the sites."""
        for case in self.cases:
            self._checked(f"{case.name} across 3 hosts", self.network.run(case))

    def _checked(self, name: str, run: Run) -> bool:
        """Wait until a run has ended, and check its bits; return whether it has a result."""
        try:
            run.finish()
        except RuntimeError as error:
            run.kill()
            self.checks.add(name, "the bits of the pooled one", str(error).strip().splitlines()[-1], passed=False)
            return False
        same = self.same_bits(run)
        self.checks.add(name, "the bits of the pooled one", "same" if same else "other bits", passed=same)
        return True

    def hidden_disks(self) -> None:
        """Check that the coordinator sees none of the disks of the sites."""
        log = self.network.disk(COORDINATOR) / "disks.log"
        code = "import os, sys; print(sum(len(os.listdir(path)) for path in sys.argv[1:]))"
        self.network.start(COORDINATOR, "-c", code, *(self.network.disk(site) for site in SITES), log=log).require_success()
        files = int(log.read_text())
        self.checks.add("files of sites that the coordinator sees", "0", files, passed=files == 0)

    def leaks(self, struck: Sequence[Fault] = ()) -> list[Recorded]:
        """Record every case, or a fit that suffers all of these faults, and search what was said."""
        with recording.recorder(self.network) as recorder:
            recorded: list[Recorded] = []
            failed: list[Recorded] = []
            for run in [recorder.suffer(struck)] if struck else map(recorder.run, self.cases):
                ended = recorded if self._checked(f"{run.case.name}, recorded", run) else failed
                ended.append(Recorded(run, recorder.new()))
            patterns = recording.canaries(self.network, [each.run for each in recorded])
            texts = recording.searched([spoken for each in [*recorded, *failed] for spoken in each.spoken])
            self._search(patterns, texts, f"{sum(each.calls for each in recorded)} messages, {sum(map(len, texts)) / 2**20:.0f} MiB")
            leaked = recorder.leak(patterns)
            overlooked = recording.missed(patterns, leaked)
            text = f"{len(patterns) + 1 - len(overlooked)} of {len(patterns) + 1}"
            self.checks.add("canaries sent on purpose that the search finds", "all", text, passed=not overlooked)
            said = sum(len(spoken.raw) for spoken in [*leaked, *(one for each in [*recorded, *failed] for one in each.spoken)])
            self._packets(recorder, patterns, said)
        return recorded

    def _search(self, patterns: list[canaries.Canary], texts: list[bytes], size: str) -> None:
        hits = canaries.found(patterns, texts)
        for kind in canaries.KINDS:
            count, of = (sum(canary.kind == kind for canary in each) for each in (hits, patterns))
            name = f"{kind} in the plaintext of all connections, both ways"
            self.checks.add(name, "0", f"{count} of {of} patterns, in {size}", passed=of > 0 and count == 0)

    def _packets(self, recorder: recording.Recorder, patterns: list[canaries.Canary], said: int) -> None:
        """Check that the capture holds no other connections than those that were decrypted."""
        traffic, last = recorder.traffic()
        others = sum(traffic.others.values())
        self.checks.add("packets of other connections than those decrypted", "0", others, passed=others == 0)
        self.checks.add("packets that the capture has lost", "0", last, passed=last == "lost 0")
        share = traffic.payload / (2 * said)
        # What is said crosses the network twice, and encryption adds to it.
        text = f"{share:.2f}, of {traffic.payload / 2**20:.1f} MiB in {traffic.frames} packets"
        self.checks.add("bytes of TCP for each byte of plaintext", "from 1 to 1.5", text, passed=1 <= share <= 1.5)
        clear = len(canaries.found(patterns, [traffic.raw])) + (b"bounded_nmf" in traffic.raw)
        self.checks.add("canaries or names of sums in the packets as captured", "0", clear, passed=clear == 0)

    def faults(self) -> None:
        """Check fits that suffer one fault each."""
        for case, fault in [*((LONG, fault) for fault in faults(*CUTS)), *((TILED, fault) for fault in faults())]:
            run, longest = suffer(self.network, [fault], case)
            same = self.same_bits(run)
            text = f"{'same' if same else 'other bits'}, longest pause {longest:.1f} s"
            self.checks.add(f"{case.name}, {fault.name}", "the bits of the pooled fit", text, passed=same)

    def costs(self, recorded: list[Recorded], repeats: int) -> list[dict[str, Any]]:
        """Return a table of the costs of the recorded cases; check the bits across 20 sites."""
        cases = [each.run.case for each in recorded]
        over_hosts, pooled = costs.over_the_network(self.network, cases, repeats), costs.pooled_seconds(self.network, cases, repeats)
        table = []
        for each in recorded:
            name, passes = each.run.case.name, each.run.passes()
            row = costs.cost_row(each.run.case, len(SITES), passes, each.calls, each.size, over_hosts[name])
            table.append(row | costs.pooled_columns(over_hosts[name], pooled[name], passes))
        for many in costs.many_sites(cases, self.network.rows * len(SITES) // costs.MANY, self.network.columns, repeats):
            same = many.pop("same")
            name = f"{many['fit']} across {costs.MANY} sites"
            self.checks.add(name, "the bits of the pooled one", "same" if same else "other bits", passed=same)
            table.append(many)
        return table
