"""Print the table of the guide ``stability``: congruences of equal and of unrelated non-negative loadings.

python -m benchmarks.evidence.nonnegative
"""

from itertools import product

import numpy as np

from benchmarks.evidence.factors import simulate_nonnegative

RUNS = 8
SHAPES = [(24, 3), (40, 5)]


def main() -> None:
    print("| people a group | items | factors | noise | φ, equal | φ, unrelated | centred, equal | centred, unrelated |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for n, (m, k), noise in product((200, 1000), SHAPES, (0.4, 0.8)):
        columns = []
        for related in (True, False):
            found = [simulate_nonnegative(n, m, k, noise, seed, related=related) for seed in range(RUNS)]
            columns.append([np.concatenate([getattr(one, name).ravel() for one in found]) for name in ("congruence", "centred")])
        cells = [columns[i][j] for j in (0, 1) for i in (0, 1)]
        texts = [f"{low:.2f} to {high:.2f}" for low, high in (np.quantile(values, [0.05, 0.95]) for values in cells)]
        print(f"| {n} | {m} | {k} | {noise} | {' | '.join(texts)} |", flush=True)


if __name__ == "__main__":
    main()
