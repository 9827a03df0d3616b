"""A choice by held-out entries that is interrupted goes on, and ends with the same bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client

import dfact
from dfact.engine.checkpoint import resume_point
from dfact.engine.executors import LocalSession
from dfact.selection import entry_fits
from dfact.selection.held_out_entries import select_by_held_out
from dfact.selection.result import Selection
from dfact.selection.results_store import BatchResults
from dfact.storage.records import Records
from tests.selection.test_held_out import compressed, planted

GRID: dict[str, Any] = {"n_components": [1, 3], "omega": [0.2, 0.5]}


class InterruptionError(Exception):
    """What stands for a lost driver where a whole process would be too slow."""


class Visits:
    """Counts passes over the data on this machine, and is interrupted in the one behind ``left``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.left = 0, 1 << 30
        run = LocalSession.run

        def counted(session: LocalSession, pass_: Any, broadcast: Any) -> Any:
            sums = run(session, pass_, broadcast)
            if self.left == 0:
                raise InterruptionError
            self.left -= 1
            self.count += 1
            return sums

        monkeypatch.setattr(LocalSession, "run", counted)

    def of(self, work: Callable[[], Any], left: int = 1 << 30) -> tuple[int, Any]:
        """How many the work takes, and what it gives; None if it is interrupted."""
        self.count, self.left = 0, left
        try:
            found = work()
            return self.count, found
        except InterruptionError:
            return self.count, None
        finally:
            self.left = 1 << 30


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    return Visits(monkeypatch)


def select(X: Any, **settings: Any) -> Selection:
    model = {"ridge": 0.1, "max_iter": 6, "tol": 0.0, "checkpoint_every": 3, "executor": "inline"} | settings.pop("model", {})
    return select_by_held_out(dfact.ExpectileMF(**model), X, settings.pop("grid", GRID), **({"random_state": 0, "repeats": 2} | settings))


def same(one: Selection, other: Selection) -> None:
    pd.testing.assert_frame_equal(one.table, other.table, check_exact=True)
    assert one.best_params == other.best_params
    for name in ("column_factors_", "row_factors_", "objective_history_"):
        np.testing.assert_array_equal(np.asarray(getattr(one.model, name)), np.asarray(getattr(other.model, name)))


def batches_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for so many fits at once."""
    largest_batch = batches_of.largest_batch  # type: ignore[attr-defined]
    monkeypatch.setattr(
        entry_fits, "largest_batch", lambda source, dtype, fits, workers: largest_batch(source, dtype, fits[:size], workers)
    )


batches_of.largest_batch = entry_fits.largest_batch  # type: ignore[attr-defined]


@pytest.mark.parametrize(("kind", "every", "size"), [("dense", 1, 8), ("sparse", 3, 8), ("stored", 3, 3), ("threads", 3, 5)])
def test_interrupted_anywhere_it_ends_with_the_same_bits(
    kind: str, every: int, size: int, tmp_path: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dfact.data.layout._PARTITION_ENTRIES", 1 << 11)
    X: Any = planted(every, 150, 30, observed=0.3)
    X = dfact.import_array(X, tmp_path / "x.zarr") if kind == "stored" else compressed(X) if kind == "sparse" else X
    settings: dict[str, Any] = {"model": {"checkpoint_every": every, "executor": "threads" if kind == "threads" else "inline"}}
    batches_of(size, monkeypatch)
    total, undisturbed = visits.of(lambda: select(X, **settings))
    for left in np.random.default_rng(size).permutation(total)[:5]:
        kept = settings | {"checkpoint": tmp_path / f"{left}.kept"}
        assert visits.of(lambda: select(X, **kept), int(left)) == (left, None)  # noqa: B023
        done, found = visits.of(lambda: select(X, **kept))  # noqa: B023
        same(found, undisturbed)
        assert total - left <= done <= total - left + every  # what no version held is done again
        rest, again = visits.of(lambda: select(X, **kept))  # noqa: B023
        same(again, undisturbed)
        assert rest < every, "of the last fit alone, behind its last version"


def test_interrupted_again_and_again(tmp_path: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    batches_of(3, monkeypatch)
    X = planted(0, 150, 30)
    total, undisturbed = visits.of(lambda: select(X))
    tries, found = 0, None
    while found is None:
        found = visits.of(lambda: select(X, checkpoint=tmp_path / "kept"), 4)[1]
        tries += 1
    same(found, undisturbed)
    assert total // 4 <= tries <= total // 3 + 1
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["errors-000000", "errors-000003", "errors-000006", "model", "starts-000000", "zarr.json"], "no passes are left"


@pytest.mark.parametrize(("before", "then"), [(4, 8), (8, 3), (3, 2)])
def test_the_memory_of_the_machine_that_goes_on_changes_nothing(
    before: int, then: int, tmp_path: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, path = planted(1, 150, 30), tmp_path / "kept"
    undisturbed = select(X)
    batches_of(before, monkeypatch)
    last = 7 // before * before
    while not (begun := [found for found in path.glob(f"passes-errors-{last:06d}-*") if resume_point(found)]):
        assert visits.of(lambda: select(X, checkpoint=path), 4)[1] is None
    batches_of(then, monkeypatch)
    steps = resume_point(begun[0])
    taken: list[tuple[str, int, int, int]] = []
    keeping = BatchResults.keeping

    def watched(self: BatchResults, session: Any, what: str, first: int, count: int) -> Any:
        found = keeping(self, session, what, first, count)
        place = path / f"passes-{what}-{first:06d}-{count:06d}"
        taken.append((what, first, count, resume_point(place) if place.exists() else 0))
        return found

    monkeypatch.setattr(BatchResults, "keeping", watched)
    same(select(X, checkpoint=path), undisturbed)
    # Those at hand are gone on with if they still have room, else anew in smaller batches.
    first, count = (int(number) for number in begun[0].name.split("-")[2:])
    assert taken[0] == (("errors", first, count, steps) if count <= then else ("errors", first, then, 0))
    assert steps >= 3


def test_what_is_left_of_passes_that_were_to_go_is_not_taken_for_whole(
    tmp_path: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = planted(2, 150, 30)
    undisturbed = select(X)
    visits.of(lambda: select(X, checkpoint=tmp_path / "kept"), 8)
    [passes] = (tmp_path / "kept").glob("passes-*")

    def interrupted(_: Records, name: str) -> None:
        for file in (tmp_path / "kept" / name).glob("steps-*/arrays/*"):
            file.unlink()
        raise InterruptionError

    with monkeypatch.context() as patched:
        patched.setattr(Records, "remove", interrupted)
        batches_of(2, patched)
        assert visits.of(lambda: select(X, checkpoint=tmp_path / "kept"))[1] is None
    assert passes.exists()
    same(select(X, checkpoint=tmp_path / "kept"), undisturbed)


@pytest.mark.parametrize("step", ["add", "last"])
def test_interrupted_where_a_batch_ends(step: str, tmp_path: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    X = planted(3, 150, 30)
    undisturbed = select(X)

    def interrupted(*_: Any) -> None:
        raise InterruptionError

    with monkeypatch.context() as patched:
        patched.setattr(BatchResults, step, interrupted)
        assert visits.of(lambda: select(X, checkpoint=tmp_path / "kept"))[1] is None
    same(select(X, checkpoint=tmp_path / "kept"), undisturbed)


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_interrupted_within_a_write(after: int, tmp_path: Path, visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind some attributes, and in the midst of what follows them."""
    X = planted(4, 150, 30)
    undisturbed = select(X)
    finish, left = dfact.storage.records.RecordWriter.finish, [after]

    def interrupted(self: Any, **attributes: Any) -> None:
        if left[0] == 0:
            raise InterruptionError
        left[0] -= 1
        finish(self, **attributes)

    with monkeypatch.context() as patched:
        patched.setattr(dfact.storage.records.RecordWriter, "finish", interrupted)
        assert visits.of(lambda: select(X, checkpoint=tmp_path / "kept"))[1] is None
    same(select(X, checkpoint=tmp_path / "kept"), undisturbed)


def test_it_goes_on_wherever_it_runs(tmp_path: Path, client: Client, visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dfact.data.layout._PARTITION_ENTRIES", 1 << 11)
    X = dfact.import_array(planted(5, 150, 30), tmp_path / "x.zarr")
    undisturbed = select(X)
    path = tmp_path / "kept"
    assert visits.of(lambda: select(X, checkpoint=path), 8)[1] is None

    def interrupted(iteration: Any) -> None:
        if iteration.number >= 32:  # four of each of eight fits
            raise InterruptionError

    with pytest.raises(InterruptionError):
        select(X, checkpoint=path, model={"executor": client}, callbacks=[interrupted])
    same(select(X, checkpoint=path, model={"executor": "threads"}), undisturbed)


def test_seeds_that_were_drawn_by_chance(tmp_path: Path, visits: Visits) -> None:
    X = planted(6, 150, 30)
    random: dict[str, Any] = {"model": {"init": "random", "random_state": None}, "random_state": None}
    tables = [select(X, **random).table for _ in range(2)]
    assert not tables[0].equals(tables[1])
    kept = random | {"checkpoint": tmp_path / "kept"}
    assert visits.of(lambda: select(X, **kept), 4)[1] is None
    first = select(X, **kept)
    same(select(X, **kept), first)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"X": planted(8, 150, 30)}, "data is"),
        ({"model": {"tol": 1e-3}}, r"model is ExpectileMF\(.*tol=0.0.*, expected .*tol=0.001.*"),
        ({"grid": GRID | {"omega": [0.2]}}, "grid is"),
        ({"share": 0.2}, r"share is 0.1, expected 0.2"),
        ({"error": "absolute"}, "error is relative, expected absolute"),
        ({"bins": [0, 1, np.inf]}, r"bins is \[\], expected \[0.0, 1.0, inf\]"),
        ({"repeats": 3}, "repeats is 2, expected 3"),
        ({"random_state": 1}, "seed is"),
    ],
)
def test_another_selection_is_refused(change: dict[str, Any], named: str, tmp_path: Path, visits: Visits) -> None:
    settings: dict[str, Any] = {"X": planted(7, 150, 30), "checkpoint": tmp_path / "kept"}
    assert visits.of(lambda: select(**settings), 5)[1] is None
    with pytest.raises(dfact.ParameterError, match=rf"kept belongs to another selection: {named}"):
        select(**settings | change)
    select(**settings, model={"memory_limit": "9GiB", "checkpoint_every": 1})  # which change nothing


def test_what_is_damaged_is_told(tmp_path: Path) -> None:
    X, path = planted(7, 150, 30), tmp_path / "kept"
    select(X, checkpoint=path)
    [piece] = (path / "errors-000000").glob("*/0")
    piece.write_bytes(b"torn")
    with pytest.raises(dfact.StoreError, match=r"errors-000000 is missing or damaged .*; delete the checkpoint"):
        select(X, checkpoint=path)
    with pytest.raises(dfact.ParameterError, match="checkpoint_every is 0, expected an integer of at least 1"):
        select(X, model={"checkpoint_every": 0})
