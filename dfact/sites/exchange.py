"""The exchange of a run: the sums that sites contribute to each step, and the totals that they get back."""

import hashlib
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping

from dfact.errors import FederationError
from dfact.sites.messages import Message, short

RECORDED = Message({"kind": "recorded"})
"""The contribution to a step that the participant's checkpoint holds."""
_SEND = Message({"kind": "send"})
"""The reply to a site that is to send the total that it has recorded."""


class VoidCallError(FederationError):
    """A call without a recipient of its answer: its connection has broken, or the site has repeated it."""


class Exchange:
    """The steps of one run, at the coordinator. Thread-safe: a site's call waits until the total of its step is there.

    A step may be contributed to again, as after a lost connection or by a site that was restarted: the reply is the same. Totals are
    kept in a temporary file, so that a site can catch up.
    """

    def __init__(self, sites: Collection[str], wait: float) -> None:
        self._sites, self._patience = tuple(sites), wait
        self._changed = threading.Condition()
        self._contributions: dict[str, Message] = {}
        """Contributions to the current step, by site."""
        self._digests: dict[tuple[str, int], str] = {}
        """Digests of the contributions to earlier steps, by site and step. A site that repeats a step must send them unchanged."""
        self._file = tempfile.TemporaryFile(prefix="dfact-totals-")  # noqa: SIM115  # closed at the end of the run
        self._ends = [0]
        """The ends of the totals in the file."""
        self._asked: str | None = None
        """The site that is to send its recorded total."""
        self._failure: str | None = None
        self._seen: dict[str, float] = dict.fromkeys(self._sites, time.monotonic())

    def close(self) -> None:
        """End the run: sites that still call are refused."""
        self.fail("the coordinator has ended the run")
        with self._changed:
            self._file.close()

    @property
    def n_steps(self) -> int:
        """Number of steps whose totals are there."""
        return len(self._ends) - 1

    def saw(self, site: str) -> None:
        """Note that a site has shown that it lives."""
        with self._changed:
            self._seen[site] = time.monotonic()

    def contribute(self, site: str, step: int, message: Message, alive: Callable[[], bool] = lambda: True) -> Message:
        """Add a site's contribution to a step; wait for the total, and return it.

        Raises VoidCallError once the call is no longer ``alive``, or the site has called again.
        """
        with self._changed:
            self._refuse_void(alive())
            self._seen[site] = time.monotonic()
            self._refuse_failed()
            if message.fields.get("kind") not in ("sums", "nothing", "recorded") or step < 0:
                raise FederationError(f"site {site} contributes {short(message.fields.get('kind'))} to step {step}, expected sums")
            if message.fields.get("kind") == "recorded" and step < self.n_steps:
                return RECORDED
            if step > self.n_steps:
                raise FederationError(f"site {site} is at step {step}, the others at {self.n_steps}; it computes something else")
            self._check_repeated(site, step, message)
            if step == self.n_steps:
                self._contributions[site] = message
                self._changed.notify_all()
            while step == self.n_steps and self._failure is None and not (self._asked == site and message is not None):
                self._changed.wait(1.0)
                self._refuse_void(alive() and (self._contributions.get(site) is message or step < self.n_steps))
                self._seen[site] = time.monotonic()
            self._refuse_failed()
            if step == self.n_steps:
                self._asked = None
                return _SEND
            return RECORDED if message.fields.get("kind") == "recorded" else Message.decode(self._total(step))

    def collect(self, step: int) -> Mapping[str, Message]:
        """Wait until every site has contributed to a step, and return the contributions by site."""
        with self._changed:
            while len(self._contributions) < len(self._sites):
                self._refuse_failed()
                self._refuse_lost()
                self._changed.wait(0.5)
            assert step == self.n_steps, "steps are collected in order"
            return dict(self._contributions)

    def ask(self, site: str) -> Message:
        """Ask a site for the total that it has recorded for the current step, and return its answer."""
        with self._changed:
            before = self._contributions[site]
            self._asked = site
            self._changed.notify_all()
            while (answer := self._contributions[site]) is before:
                self._refuse_failed()
                self._refuse_lost()
                self._changed.wait(0.5)
            return answer

    def publish(self, total: Message) -> None:
        """Give all sites the total of the current step."""
        data = total.encode()
        with self._changed:
            for site, message in self._contributions.items():
                if message.fields.get("kind") == "sums":
                    self._digests[site, self.n_steps] = _digest(message)
            self._file.seek(self._ends[-1])
            self._file.write(data)
            self._ends.append(self._ends[-1] + len(data))
            self._contributions = {}
            self._changed.notify_all()

    def fail(self, text: str) -> None:
        """End the run for everybody, with these words; the first failure counts."""
        with self._changed:
            self._failure = self._failure or text
            self._changed.notify_all()

    @property
    def failure(self) -> str | None:
        """The words with which the run has failed."""
        return self._failure

    def _total(self, step: int) -> bytes:
        self._file.seek(self._ends[step])
        return self._file.read(self._ends[step + 1] - self._ends[step])

    def _check_repeated(self, site: str, step: int, message: Message) -> None:
        earlier = self._digests.get((site, step))
        if earlier is not None and message.fields.get("kind") == "sums" and _digest(message) != earlier:
            raise FederationError(f"site {site} sends other sums for step {step} than before; has its data or its processor changed?")

    def _refuse_void(self, alive: bool) -> None:
        if not alive:
            raise VoidCallError("the site has ended this call, or has called again")

    def _refuse_failed(self) -> None:
        if self._failure is not None:
            raise FederationError(self._failure)

    def _refuse_lost(self) -> None:
        lacking = [site for site in self._sites if site not in self._contributions]
        now = time.monotonic()
        lost = [site for site in lacking if now - self._seen[site] > self._patience]
        if lost:
            raise FederationError(f"site {lost[0]} has not been heard of for {self._patience:g} s; start it again, then the fit")


def _digest(message: Message) -> str:
    return hashlib.sha256(message.encode()).hexdigest()
