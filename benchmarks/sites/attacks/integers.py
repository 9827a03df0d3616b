"""Attacks by exact arithmetic: answers are small whole numbers, so that few exact sums may determine them."""

from fractions import Fraction

import numpy as np

import dfact
from benchmarks.sites.attacks.harness import Array, Outcome, answers, attack, coordinator, matches

N, M = 1000, 12


def reduced(gram: Array) -> list[list[int]]:
    """Return a basis of short whole vectors by the norm vᵀGv, by the algorithm of Lenstra, Lenstra and Lovász in exact arithmetic."""
    G, m = [[Fraction(int(value)) for value in row] for row in gram], len(gram)
    basis = [[int(i == j) for j in range(m)] for i in range(m)]

    def inner(a: list[int], b: list[int]) -> Fraction:
        return sum((a[i] * G[i][j] * b[j] for i in range(m) if a[i] for j in range(m) if b[j]), Fraction(0))

    def orthogonal() -> tuple[list[list[Fraction]], list[Fraction]]:
        products = [[inner(a, b) for b in basis] for a in basis]
        mu, norms = [[Fraction(0)] * m for _ in range(m)], [Fraction(0)] * m
        r = [[Fraction(0)] * m for _ in range(m)]
        for i in range(m):
            for j in range(i + 1):
                r[i][j] = products[i][j] - sum((mu[j][k] * r[i][k] for k in range(j)), Fraction(0))
                if j < i:
                    mu[i][j] = r[i][j] / norms[j] if norms[j] else Fraction(0)
            norms[i] = r[i][i]
        return mu, norms

    k = 1
    mu, norms = orthogonal()
    while k < m:
        for j in range(k - 1, -1, -1):
            if q := round(mu[k][j]):
                basis[k] = [a - q * b for a, b in zip(basis[k], basis[j], strict=True)]
                mu, norms = orthogonal()
        if norms[k] >= (Fraction(3, 4) - mu[k][k - 1] ** 2) * norms[k - 1]:
            k += 1
        else:
            basis[k], basis[k - 1] = basis[k - 1], basis[k]
            mu, norms = orthogonal()
            k = max(k - 1, 1)
    return basis


@attack("almost equal items", honest=True, quick=True)
def almost_equal_items() -> Outcome:
    """Find whole combinations of items that are 0 for all but a person, by lattice reduction of their products: a control question."""
    tries, recovered, words = 5, 0, ""
    for trial in range(tries):
        north, south = answers(N, M, trial), answers(N, M, 100 + trial)
        north[:, 5], south[:, 5] = north[:, 0], south[:, 0]  # a control question, to which one person gives another answer
        person = 37 + 150 * trial
        north[person, 5] = north[person, 0] + (1 if north[person, 0] < 4 else -1)
        with coordinator({"north": north, "south": south}) as attacker:
            attacker.fit(dfact.NMF(1, max_iter=1))
            sums = attacker.sums("svd_gram")
            words = words or attacker.words
        if not sums:
            continue
        gram = np.rint(sums[0].gram).astype(int)
        for vector in reduced(gram):
            found = gram @ vector
            if 0 < vector @ found <= 4:
                scale = np.sqrt(vector @ found)
                recovered += any((matches(sign * found / scale, north) == person).any() for sign in (1, -1))
    return Outcome(recovered, tries, words)
