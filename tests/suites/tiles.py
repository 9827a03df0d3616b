"""A fit with sums by tiles: robust weights of rows and a box Newton step of columns, compared with a reference in NumPy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dfact.engine import tiles
from dfact.engine.block_state import BlockState, StateArrays
from dfact.engine.passes import Block, PartialSums, TiledPass
from dfact.engine.requests import Solver, read_tiles, run, step_tiles
from dfact.engine.tiles import Tile, TileBroadcast
from tests.conftest import CutRows

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


@dataclass
class ColumnSums(PartialSums, name="test_columns"):
    slope: NDArray[Any]
    """(1, m)."""
    curvature: NDArray[Any]
    """(m,)."""
    loss: NDArray[Any]


@dataclass
class Weights(BlockState):
    weights: NDArray[Any]
    """(1, rows)."""


@dataclass(frozen=True)
class WeightedPass(TiledPass[Weights, Any, ColumnSums]):
    """Weights of rows from their squared distances to p (m,), and the weighted sums of the columns' distances."""

    dtype: np.dtype[Any] = FLOAT32
    columns: int = 1 << 12
    state_type = Weights
    tiled = ("slope", "curvature")

    def start(self, block: Block) -> Weights:
        return Weights(np.ones((1, len(block.stored))))  # type: ignore[arg-type]  # an array

    def zeros(self, n_columns: int) -> ColumnSums:
        return ColumnSums(np.zeros((1, n_columns)), np.zeros(n_columns), np.zeros(()))

    def accumulate(self, block: Block, state: Weights, broadcast: Any, total: ColumnSums) -> Weights:
        p, penalty = broadcast
        codes, _ = block.codes
        m = codes.shape[1]
        parts = [slice(start, start + self.columns) for start in range(0, m, self.columns)]
        squares = np.zeros(len(codes))
        for part in parts:
            squares += np.square(codes[:, part] - p[part]).sum(axis=1)
        weights = np.sqrt(state.weights / (penalty + squares / m))
        for part in parts:
            total.slope[:, part] += weights @ (codes[:, part] - p[part])
            total.curvature[part] += weights.sum()
        total.loss += np.log(penalty + squares / m).sum()
        return Weights(weights)


@dataclass
class Moved(PartialSums, name="test_moved"):
    square: NDArray[Any]
    cross: NDArray[Any]


@dataclass(frozen=True)
class NewtonStep:
    """Newton's step of each column within the box, from the point that is given or kept."""

    upper: float

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        p = tile.state["p"]
        new = np.clip(p + tile.sums["slope"][0] / tile.sums["curvature"], 0, self.upper)
        moved = new - p
        return {"p": new, "move": moved}, Moved(np.asarray(moved @ moved), np.asarray(moved @ tile.state["move"]))


@dataclass(frozen=True)
class Extrapolate:
    """The step prolonged by a factor."""

    factor: float
    upper: float

    def __call__(self, tile: Tile) -> tuple[StateArrays, PartialSums]:
        assert not tile.sums, "the step before has used them"
        p = np.clip(tile.state["p"] + self.factor * tile.state["move"], 0, self.upper)
        return {"p": p, "move": tile.state["move"]}, Moved(np.zeros(()), np.asarray(float(tile.number)))


def begin(tile: Tile) -> tuple[StateArrays, PartialSums]:
    return {"p": tile.given["p"], "move": np.zeros_like(tile.given["p"])}, Moved(np.zeros(()), np.zeros(()))


def fit(
    m: int, passes: int = 4, pass_: WeightedPass | None = None, upper: float = 2.5, newton: Callable[[float], NewtonStep] = NewtonStep
) -> Solver[tuple[NDArray[Any], list[Any]]]:
    history = []
    pass_ = pass_ or WeightedPass()
    yield from step_tiles(begin, {"p": np.full(m, 1.0)})
    for number in range(passes):
        sums = yield from run(pass_, TileBroadcast("p", FLOAT64, 0.1 * (1 + number)))
        assert sums.slope.shape == (1, 0)
        assert sums.curvature.shape == (0,)
        moved = yield from step_tiles(newton(upper))
        factor = float(moved.cross / max(moved.square, 1e-9)) / 10
        last = yield from step_tiles(Extrapolate(factor, upper))
        history.append((float(sums.loss), float(moved.square), float(moved.cross), float(last.cross)))
    return (yield from read_tiles("p", FLOAT64)), history


def reference(X: NDArray[Any], passes: int = 4, upper: float = 2.5) -> tuple[NDArray[Any], list[Any], NDArray[Any]]:
    """The same fit, all rows and columns at once."""
    X = X.astype(float)
    p, move, weights, history = np.full(X.shape[1], 1.0), np.zeros(X.shape[1]), np.ones(len(X)), []
    for number in range(passes):
        distances = 0.1 * (1 + number) + np.square(X - p).mean(axis=1)
        weights = np.sqrt(weights / distances)
        new = np.clip(p + weights @ (X - p) / weights.sum(), 0, upper)
        history.append((np.log(distances).sum(), (new - p) @ (new - p), (new - p) @ move))
        factor, move = history[-1][2] / max(history[-1][1], 1e-9) / 10, new - p
        p = np.clip(new + factor * move, 0, upper)
    return p, history, weights


def cut_small(cut_rows: CutRows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut small data into several groups of several partitions, and several tiles."""
    cut_rows(block_entries=1 << 11, chunk_entries=1 << 13, partition_entries=1 << 12)
    monkeypatch.setattr(tiles, "_GROUP_ROWS", 400)
    monkeypatch.setattr(tiles, "_FEW_GROUPS", 1)
    monkeypatch.setattr(tiles, "_TILE_COLUMNS", 11)
