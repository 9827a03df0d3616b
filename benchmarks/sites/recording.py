"""The same fits with everything that is said recorded: packets at the switch, and plaintext in the middle."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.sites import capture, leak, relay
from benchmarks.sites.canaries import Canary, found, of_data, of_factors, write
from benchmarks.sites.capture import Traffic
from benchmarks.sites.cases import ICQF, SITES, Case, canary_label, row_factors
from benchmarks.sites.faults import Fault, suffer
from benchmarks.sites.plaintext import Spoken, read_all
from benchmarks.sites.sites import COORDINATOR, MIDDLE, PORT, SWITCH, Network, Program, Run


@dataclass
class Recorded:
    """A run through the middle, with what was said."""

    run: Run
    spoken: list[Spoken]

    @property
    def calls(self) -> int:
        """Number of messages of the sites, each of which has an answer."""
        return sum(len(each.messages) for each in self.spoken if each.sent)

    @property
    def size(self) -> int:
        """Bytes of all messages, both ways."""
        return sum(len(message) for each in self.spoken for message in each.messages)


@dataclass
class Recorder:
    """Records runs, until the ``with`` block ends."""

    network: Network
    folder: Path
    packets: Path
    programs: list[Program] = field(default_factory=list)
    _seen: set[Path] = field(default_factory=set)

    def run(self, case: Case) -> Run:
        """Start a case through the middle."""
        return self.network.run(case, via=MIDDLE)

    def suffer(self, struck: Sequence[Fault]) -> Run:
        """Carry out a fit that suffers faults through the middle."""
        return suffer(self.network, struck, via=MIDDLE)[0]

    def new(self) -> list[Spoken]:
        """Return what was said since the last call."""
        paths = [path for path in sorted(self.folder.glob("*")) if path not in self._seen]
        self._seen.update(paths)
        return read_all(paths)

    def leak(self, canaries: list[Canary]) -> list[Spoken]:
        """Let a site send all canaries to a coordinator, and return what was said."""
        site, disk = SITES[1], self.network.disk(SITES[1])
        write(canaries, disk / "patterns.json")
        run = self.network.coordinator(ICQF)
        run.coordinator.wait_for(lambda: "Listening" in run.coordinator.said, "it listens")
        words = [self.network.address(MIDDLE), disk / "tls", disk / "patterns.json", canary_label(site)]
        self.network.start(site, "-m", leak.__name__, *words, log=disk / "leak.log").require_success()
        run.coordinator.terminate()
        return self.new()

    def traffic(self) -> tuple[Traffic, str]:
        """End the capture; return what it holds, and its last words."""
        self.programs[0].terminate()
        middle, coordinator = self.network.host_address(MIDDLE), self.network.host_address(COORDINATOR)
        pairs = {(self.network.host_address(site), middle) for site in SITES} | {(middle, coordinator)}
        return Traffic.read(self.packets, pairs, PORT), self.programs[0].said.splitlines()[-1]


@contextmanager
def recorder(network: Network) -> Iterator[Recorder]:
    """Start a capture of all packets, and the relay in the middle."""
    disk = network.disk(MIDDLE)
    folder, packets = disk / "records", network.folder / "packets"
    folder.mkdir()
    recording = Recorder(network, folder, packets)
    recording.programs.append(network.start(SWITCH, "-m", capture.__name__, packets, log=network.folder / "capture.log"))
    words = [network.address(MIDDLE), network.address(COORDINATOR), disk, folder]
    recording.programs.append(network.start(MIDDLE, "-m", relay.__name__, *words, log=disk / "relay.log"))
    for program, ready in zip(recording.programs, (capture.READY, relay.READY), strict=True):
        program.wait_for(lambda program=program, ready=ready: ready in program.said, "it is ready")
    try:
        yield recording
    finally:
        for program in recording.programs:
            program.kill()


def canaries(network: Network, runs: Iterable[Run]) -> list[Canary]:
    """Return what must not be found: canaries of the data, and of the row factors of all runs at the sites."""
    patterns = list(of_data(network.rows, network.columns))
    for run in runs:
        if run.case.model is not None:
            for site in SITES:
                patterns += of_factors(site, np.asarray(row_factors(run.site_model(site))))
    return patterns


def searched(spoken: Iterable[Spoken]) -> list[bytes]:
    """Return all texts to search: the plaintext as it was sent, headers, and whole messages."""
    return [text for each in spoken for text in (each.raw, each.headers, *each.messages)]


def missed(patterns: list[Canary], spoken: list[Spoken]) -> list[Canary]:
    """Return the canaries of a leak that were not found as often as they were sent, or not in a refusal."""
    messages = b"\n".join(message for each in spoken for message in each.messages)
    times = leak.copies([canary.pattern for canary in patterns])
    overlooked = [canary for canary in patterns if messages.count(canary.pattern) < times]
    refusal = Canary("a refusal", SITES[1], canary_label(SITES[1]).encode())
    return overlooked + ([] if found([refusal], [each.headers for each in spoken if not each.sent]) else [refusal])
