"""Attacks by thresholds: a number that the coordinator sets decides which rows a sum leaves out, and two such sums differ by a row."""

from collections.abc import Callable
from typing import Any

import numpy as np

import dfact
from benchmarks.sites.attacks.harness import Array, Coordinator, Outcome, answers, attack, coordinator, matches, whole

N, M = 2000, 12


def drawn(random_state: int) -> int:
    """Return the seed that a fit draws from a random state."""
    return int(np.random.RandomState(random_state).randint(np.iinfo(np.int32).max))


def loadings_of_start(seed: int, highest: Array | float) -> Array:
    """Return the random loadings (1, m) at which a fit starts: the coordinator knows the seed."""
    return np.random.default_rng(drawn(seed)).uniform(0, highest, (1, M))


def one_row(difference: Array, q: Array, least: float) -> Array | None:
    """Return the answers x of the rows with a score t = q·x / q·q above ``least``, given the sum of (t − least)·x.

    Returns None if there are several with different answers, or more than three.
    """
    for number in (1, 2, 3):
        score = float(q @ difference / (q @ q)) / number  # (t − least)·t
        t = (least + np.sqrt(least**2 + 4 * max(score, 0.0))) / 2
        if t - least > 1e-9 and whole(row := difference / number / (t - least)):
            return np.rint(row)
    return None


def first_cross(attacker: Coordinator, model: Any) -> Array | None:
    """Return the products of the factor with the answers after one iteration; None if they do not leave."""
    attacker.forget()
    attacker.fit(model)
    sums = attacker.sums("bounded_nmf")
    return sums[0].cross[0] if sums else None


def by_halving(attempt: Callable[[float], int], low: float, high: float, times: int) -> None:
    """Halve an interval until an attempt returns 0; it returns 1 to go up, and −1 to go down."""
    for _ in range(times):
        middle = (low + high) / 2
        way = attempt(middle)
        if way == 0:
            return
        low, high = (middle, high) if way > 0 else (low, middle)


@attack("clipped factors", honest=True, quick=True)
def clipped_factors() -> Outcome:
    """Halve the largest factor (w_max of ICQF): the sums without and with it differ by the one person whose factor it clips."""
    north, tries, found = answers(N, M, 1), 5, set[int]()
    with coordinator({"north": north, "south": answers(N, M, 2)}) as attacker:
        for seed in range(tries):
            q = loadings_of_start(seed, 4.0)[0]
            settings = {"init": "random", "random_state": seed, "max_iter": 1, "beta": 0.0, "dtype": "float64", "solver": "mm"}
            whole_sum = first_cross(attacker, dfact.ICQF(1, w_max=float("inf"), bounds=(0.0, float("inf")), **settings))
            if whole_sum is None:
                break

            def attempt(least: float, q: Array = q, total: Array = whole_sum, settings: Any = settings) -> int:
                clipped = first_cross(attacker, dfact.ICQF(1, w_max=least, bounds=(0.0, float("inf")), **settings))
                if clipped is None:
                    return 0
                if np.abs(total - clipped).max() < 1e-7:
                    return -1
                row = one_row(total - clipped, q, least)
                if row is None:
                    return 1
                found.update(matches(row, north))
                return 0

            by_halving(attempt, 0.01, float(4 * q.sum() / (q @ q)), 12)
    return Outcome(min(len(found), tries), tries, attacker.words)


@attack("shrunk factors", honest=True, quick=True)
def shrunk_factors() -> Outcome:
    """Raise the penalty of ElasticCP: the sums bend where one person's factor becomes 0, and the bend is a multiple of the answers."""
    n, seeds, found = 4000, (4,), set[int]()
    north = answers(n, M, 1)
    with coordinator({"north": north, "south": answers(n, M, 2)}) as attacker:
        for seed in seeds:
            h = np.random.default_rng(np.random.SeedSequence(drawn(seed), spawn_key=(1,))).standard_normal((1, M))[0]

            def sums(lam: float, seed: int = seed, h: Array = h) -> Array | None:
                attacker.forget()
                settings = {"n_init": 1, "init": "random", "max_iter": 1, "missing": "fill", "dtype": "float64"}
                attacker.fit(dfact.ElasticCP(1, lam=lam, l1_ratio=1.0, slice_variances=None, random_state=seed, **settings))
                left = attacker.sums("cp")
                return left[0].cross[0] * (h @ h) if left else None

            first, second = sums(0.5), sums(1.0)
            if first is None or second is None:
                break
            for lam in (3.0, 6.0):
                if (left := sums(lam)) is None:
                    break
                limit = 0.01 * lam  # the first iterations have a hundredth of the penalty
                bend = first + (lam - 0.5) / 0.5 * (second - first) - left  # (t ∓ limit)·x of a person with a score |t| below the limit
                if np.abs(bend).max() < 1e-7:
                    continue
                for number in range(1, 5):  # the largest answer
                    row = np.rint(bend * number / bend[np.abs(bend).argmax()])
                    if np.abs(bend * number / bend[np.abs(bend).argmax()] - row).max() < 0.02 and abs(h @ row) < limit:
                        found.update(matches(row, north))
                break
    return Outcome(min(len(found), len(seeds)), len(seeds), attacker.words)


@attack("bounded sum score", honest=True, quick=True)
def bounded_sum_score() -> Outcome:
    """Bound all loadings of ICQF by one number, so that only the highest sum score reaches the largest factor: one sum less a known one."""
    tries, found, words = 4, 0, ""
    for trial in range(tries):
        north = answers(N, M, trial)
        with coordinator({"north": north, "south": answers(N, M, 50 + trial)}) as attacker:
            for score in range(4 * M - 1, 2 * M, -1):
                # Loadings that all are at q_max make the factor Σx / (m·q_max), which may be 1 at most.
                attacker.forget()
                attacker.fit(dfact.ICQF(1, beta=0.0, q_max=float(score) / M, max_iter=1, dtype="float64"))
                sums, gram, given = attacker.sums("bounded_nmf"), attacker.sums("svd_gram"), attacker.given
                loadings = next((each[0][0] for each in given if isinstance(each, tuple) and np.shape(each[0]) == (1, M)), None)
                if not sums or not gram or loadings is None:
                    break
                unbounded = gram[0].gram.astype(float) @ loadings / (loadings @ loadings)
                difference = unbounded - sums[0].cross[0]
                if np.abs(difference).max() < 1e-3:
                    continue
                row = one_row(difference, loadings.astype(float), 1.0)
                found += row is not None and matches(row, north).size > 0
                break
            words = words or attacker.words
    return Outcome(found, tries, words)


@attack("lowest score", honest=True, quick=True)
def lowest_score() -> Outcome:
    """Raise the penalty of ICQF from random loadings until it takes the factor of the one person with the lowest score above 0."""
    rng, tries, found = np.random.default_rng(5), 5, set[int]()
    north, south = ((rng.integers(1, 5, (N, M)) * (rng.random((N, M)) < 0.45)).astype(np.float32) for _ in range(2))
    with coordinator({"north": north, "south": south}) as attacker:
        for seed in range(tries):
            q = loadings_of_start(seed, 0.1)[0]

            def cross(beta: float, seed: int = seed, q: Array = q) -> Array | None:
                settings = {"init": "random", "random_state": seed, "max_iter": 1, "dtype": "float64", "w_max": float("inf")}
                left = first_cross(attacker, dfact.ICQF(1, beta=beta, q_max=0.1, bounds=(0.0, float("inf")), **settings))
                return None if left is None else left * (q @ q)

            first, second = cross(0.0), cross(1e-4)
            if first is None or second is None:
                break
            slope = (second - first) / 1e-4

            def attempt(beta: float, q: Array = q, first: Array = first, slope: Array = slope, cross: Any = cross) -> int:
                left = cross(beta)
                if left is None:
                    return 0
                bend = left - first - beta * slope  # (beta − t)·x of those with a score t below beta
                if np.abs(bend).max() < 1e-7:
                    return 1
                score = float(q @ bend)  # (beta − t)·t
                for t in ((beta + sign * np.sqrt(max(beta**2 - 4 * score, 0.0))) / 2 for sign in (1, -1)):
                    if beta - t > 1e-9 and whole(row := bend / (beta - t)):
                        found.update(matches(np.rint(row), north))
                        return 0
                return -1

            by_halving(attempt, 0.0, 0.5, 12)
    return Outcome(min(len(found), tries), tries, attacker.words)


_ORDER = np.array([1, -4, 6, -4, 1])
"""Weights of a fourth difference."""


@attack("residual signs", honest=True)
def residual_signs() -> Outcome:
    """Change the ridge of ExpectileMF a little: an entry's residual changes its sign, which gives a person's factor, and it the answers."""
    tries, m, tau, step, found = 2, 8, 0.98, 5e-3, set[int]()
    north, south = answers(N, m, 1), answers(N, m, 2)
    with coordinator({"north": north, "south": south}) as attacker:
        for seed in range(tries):

            def curvatures(ridge: float, seed: int = seed) -> Array | None:
                attacker.forget()
                settings = {"init": "random", "random_state": seed, "max_iter": 1, "solver": "exact", "dtype": "float64"}
                attacker.fit(dfact.ExpectileMF(1, tau=tau, ridge=ridge, **settings))
                left = attacker.sums("expectile")
                return left[0].curvature.reshape(-1) if left else None

            ridges = 1.0 + step * np.arange(7)
            curves = [curve for ridge in ridges if (curve := curvatures(ridge)) is not None]
            if len(curves) < len(ridges):
                break
            y = next(each.Y for each in attacker.given if hasattr(each, "Y"))[:, 0]
            for column, curve in enumerate(np.array(curves).T):
                jump, after = one_jump(curve)
                if not jump:
                    continue
                smooth = np.polynomial.Polynomial.fit(ridges, curve - jump * (np.arange(7) > after), 5)
                low, high = ridges[after], ridges[after + 1]
                for _ in range(12):
                    here = curvatures((low + high) / 2)
                    if here is None:
                        break
                    early = abs(here[column] - smooth((low + high) / 2)) < abs(jump) / 2
                    low, high = ((low + high) / 2, high) if early else (low, (low + high) / 2)
                answer = np.rint(np.sqrt(abs(jump) / (2 * tau - 1)) * abs(y[column]))  # the residual is 0
                for row in rows_of_factor(answer / y[column], y, tau, low, high):
                    found.update(matches(row, north))
                break
    return Outcome(min(len(found), tries), tries, attacker.words)


def one_jump(curve: Array) -> tuple[float, int]:
    """Return the only jump of a smooth curve at seven equidistant points, and the point before it; 0 without, or with several."""
    steps = np.diff(curve)
    ends = np.array([_ORDER @ steps[:5], _ORDER @ steps[1:]])
    if np.abs(ends).max() < 1e-2:  # smaller: the factor of a row bends where one of its other residuals changes its sign
        return 0.0, 0
    for place in range(6):
        weights = np.array([_ORDER[place] if place < 5 else 0, _ORDER[place - 1] if place else 0])
        jump = float(ends @ weights / (weights @ weights))
        if np.abs(ends - jump * weights).max() < 1e-2 * abs(jump):
            return jump, place
    return 0.0, 0


def rows_of_factor(x: float, y: Array, tau: float, low: float, high: float) -> Array:
    """Return all answers from 0 to 4 for which x is the factor of a row, given loadings y, for some ridge between two numbers."""
    residuals = np.arange(5)[None] - x * y[:, None]
    residuals[np.abs(residuals) < 1e-9] = 0
    terms = np.where(residuals > 0, tau, 1 - tau) * y[:, None] * residuals
    total = terms[0]
    for term in terms[1:]:
        total = np.add.outer(total, term)
    slack = 1e-9
    return np.argwhere((total / x >= low - slack) & (total / x <= high + slack)).astype(np.float32)


@attack("seeds", honest=True, quick=True)
def chosen_seeds() -> Outcome:
    """Choose seeds of random loadings for which about one person reaches the largest factor; all other parameters are the defaults."""
    n, tries, found = 1000, 5, set[int]()
    north, south = (np.maximum(answers(n, M, seed) - 1, 0) for seed in (1, 2))
    with coordinator({"north": north, "south": south}) as attacker:
        attacker.fit(dfact.NMF(1, max_iter=1))
        gram, rows = attacker.sums("svd_gram"), attacker.sums("bounded_nmf_rows")
        if not gram or not rows or first_cross(attacker, dfact.ICQF(1, init="random", max_iter=1)) is None:
            return Outcome(0, tries, attacker.words)
        G, mean = gram[0].gram.astype(float), rows[0].moments[1] / n
        spread = G / n - np.outer(mean, mean)

        def distance(seed: int) -> float:
            q = loadings_of_start(seed, 3.0)[0]
            return float((q @ q - q @ mean) / np.sqrt(q @ spread @ q))

        for seed in sorted(range(20_000), key=lambda each: abs(distance(each) - 3.2))[:tries]:
            q = loadings_of_start(seed, 3.0)[0]
            left = first_cross(attacker, dfact.ICQF(1, beta=0.0, init="random", random_state=seed, max_iter=1, dtype="float64"))
            if left is None:
                break
            row = one_row(G @ q / (q @ q) - left, q, 1.0)
            if row is not None:
                found.update(matches(row, north))
    return Outcome(min(len(found), tries), tries, attacker.words)


@attack("lowest sum", honest=True, quick=True)
def lowest_sum() -> Outcome:
    """Raise the penalty of NMF from its usual start until it takes the factor of the one person with the lowest score above 0."""
    rng, tries, found, words = np.random.default_rng(7), 4, 0, ""
    for _ in range(tries):
        north, south = ((rng.integers(1, 5, (N, M)) * (rng.random((N, M)) < 0.45)).astype(np.float32) for _ in range(2))
        hits = set[int]()
        with coordinator({"north": north, "south": south}) as attacker:

            def attempt(alpha: float, north: Array = north, hits: set[int] = hits, attacker: Coordinator = attacker) -> int:
                attacker.forget()
                attacker.fit(dfact.NMF(1, alpha_W=alpha, alpha_H=0.0, l1_ratio=1.0, max_iter=1, dtype="float64"))
                gram, left, rows = (attacker.sums(kind) for kind in ("svd_gram", "bounded_nmf", "bounded_nmf_rows"))
                given = [each[0][0] for each in attacker.given if isinstance(each, tuple) and np.shape(each[0]) == (1, M)]
                if not gram or not left or not rows or not given:
                    return 0
                q, penalty = given[0].astype(float), alpha * M
                taken = left[0].cross[0] * (q @ q) - gram[0].gram @ q + penalty * rows[0].moments[1]  # (penalty − t)·x
                if np.abs(taken).max() < 1e-3:
                    return 1
                score = float(q @ taken)
                for t in ((penalty + sign * np.sqrt(max(penalty**2 - 4 * score, 0.0))) / 2 for sign in (1, -1)):
                    if penalty - t > 1e-6 and whole(row := taken / (penalty - t)):
                        hits.update(matches(np.rint(row), north))
                        return 0
                return -1

            by_halving(attempt, 0.0, 1.0, 12)
            words = words or attacker.words
        found += bool(hits)
    return Outcome(found, tries, words)


@attack("only this item", honest=True, quick=True)
def only_this_item() -> Outcome:
    """Set the penalty of ICQF above the loadings of rare items: its sums count the persons who have one of these items and nothing else."""
    rng, tried, found, words = np.random.default_rng(11), 0, 0, ""
    shares = np.linspace(0.03, 0.4, M)
    for _ in range(3):
        north, south = ((rng.random((N, M)) < shares).astype(np.float32) for _ in range(2))
        single = north.sum(axis=1) == 1
        alone = np.flatnonzero((north[single].sum(axis=0) == 1) & (north.sum(axis=0) >= 10))
        tried += len(alone)
        counted: dict[int, set[float]] = {}
        with coordinator({"north": north, "south": south}) as attacker:
            for beta in np.arange(1, 11) / 10:
                attacker.forget()
                attacker.fit(dfact.ICQF(1, beta=float(beta), max_iter=1, dtype="float64"))
                gram, left, rows = (attacker.sums(kind) for kind in ("svd_gram", "bounded_nmf", "bounded_nmf_rows"))
                given = [each[0][0] for each in attacker.given if isinstance(each, tuple) and np.shape(each[0]) == (1, M)]
                if not gram or not left or not rows or not given:
                    break
                q = given[0].astype(float)
                taken = left[0].cross[0] * (q @ q) - gram[0].gram @ q + beta * rows[0].moments[1]  # (beta − t)·x
                pairs = np.sort(q)[:2].sum() > beta  # persons with two items keep their factor
                for item in np.flatnonzero(q < beta - 1e-3) if pairs else ():
                    counted.setdefault(int(item), set()).add(round(float(taken[item] / (beta - q[item])), 3))
            words = words or attacker.words
        found += sum(counted.get(int(item)) == {1.0} for item in alone)
    return Outcome(found, tried, words)
