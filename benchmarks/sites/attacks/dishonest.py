"""Attacks of a coordinator that sends what it likes, alone or with a site, and of a site with rows of its choice."""

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

import numpy as np

import dfact
from benchmarks.sites.attacks.harness import Array, Coordinator, Outcome, answers, attack, coordinator, matches
from benchmarks.sites.attacks.thresholds import drawn, one_row
from dfact.sites.messages import Message

Change = Callable[[int, str, list[Array]], list[Array]]
"""Returns the total of a step, given its number, the name of the pass, and the true total."""


@contextmanager
def false_totals(attacker: Coordinator, change: Change, site: str = "north") -> Iterator[None]:
    """Send a site other totals than the sums of all sites."""
    connection = attacker.sites.connections[site]
    call = type(connection).call

    def lying(message: Message) -> Message:
        answer: Message = call(connection, message)
        if message.fields["kind"] == "step" and answer.fields.get("kind") == "sums":
            total = [np.array(each) for each in answer.arrays]
            answer = Message(answer.fields, change(message.fields["step"], message.fields["message"]["pass"], total))
        return answer

    connection.call = lying
    try:
        yield
    finally:
        del connection.call


@attack("idle components", honest=False, quick=True)
def idle_components() -> Outcome:
    """Send totals that make all loadings 0, so that the factors stay at a random start whose seed is known: each sum is an equation."""
    n, m, k, design, right, words = 500, 12, 10, [], [], ""
    north = answers(n, m, 1)
    for seed in range(10):
        with coordinator({"north": north, "south": answers(n, m, 2)}) as attacker:

            def nothing(_step: int, _name: str, total: list[Array]) -> list[Array]:
                return [np.zeros_like(each) if each.ndim == 2 and each.shape[0] == k else each for each in total]

            with false_totals(attacker, nothing):
                attacker.fit(dfact.ICQF(k, init="random", random_state=seed, beta=0.0, max_iter=3, dtype="float64", tol=0.0))
            sums = attacker.sums("bounded_nmf")
            words = words or attacker.words
        if not sums:
            return Outcome(0, n, words)
        design.append(np.random.default_rng(np.random.SeedSequence(drawn(seed), spawn_key=(0,))).uniform(0, 1, (k, n)))
        right.append(sums[-1].cross)
    found = np.linalg.lstsq(np.vstack(design), np.vstack(right), rcond=None)[0]
    return Outcome(int((np.abs(found - north).max(axis=1) < 1e-3).sum()), n, words)


@attack("chosen totals", honest=False, quick=True)
def chosen_totals() -> Outcome:
    """Send totals that make the loadings of ICQF any numbers, and scale these until one person alone reaches the largest factor."""
    n, m, tries, found = 2000, 12, 5, set[int]()
    north, directions = answers(n, m, 1), np.random.default_rng(0).uniform(0.88, 1, (tries, m))
    with coordinator({"north": north, "south": answers(n, m, 2)}) as attacker:
        asking = _highest_scores(directions, north, found)
        query: list[Array] = [next(asking)]
        asked: list[int] = []

        def choose(step: int, name: str, total: list[Array]) -> list[Array]:
            if name != "MMPass":
                return total
            asked.append(step)
            if len(asked) % 2 and len(asked) > 1:  # the loadings are extrapolated, unless they are the same twice
                gram, last = attacker.sums("svd_gram")[0].gram, attacker.sums("bounded_nmf")[-1]
                query[0] = asking.send((gram.astype(float), last.cross[0]))
            false = {(2, 2): np.eye(2), (2, m): np.vstack([query[0], np.zeros(m)])}
            return [false.get(each.shape, each).astype(each.dtype) for each in total]

        with false_totals(attacker, choose):
            attacker.fit(dfact.ICQF(2, beta=0.0, max_iter=200, tol=0.0, dtype="float64"))
        return Outcome(min(len(found), tries), tries, attacker.words)


def _highest_scores(directions: Array, north: Array, found: set[int]) -> Generator[Array, tuple[Array, Array], None]:
    """Yield loadings q, and take the products of the answers with one another and with the factors, which are q·x / q·q and at most 1."""
    yield directions[0]
    for direction in directions:
        low, high = 3.8, 4 / float(direction.max())  # the largest loading is 4
        for _ in range(6):
            q = direction * (low + high) / 2
            gram, cross = yield q
            difference = gram @ q / (q @ q) - cross
            if np.abs(difference).max() < 1e-6:
                high = (low + high) / 2
                continue
            low = (low + high) / 2
            row = one_row(difference, q, 1.0)
            if row is not None:
                found.update(matches(row, north))
                break
    while True:
        yield directions[0]
