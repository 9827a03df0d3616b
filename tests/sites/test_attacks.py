"""What a coordinator that keeps all it receives finds of single persons under the default policy: nothing, or it is refused.

Attacks on the contract, the log and the coordinator itself are in the tests of policies and of hostile messages.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import dfact
from benchmarks.sites.attacks.harness import Outcome
from benchmarks.sites.attacks.table import ATTACKS
from dfact.data.coerce import as_dataset, implicit_as_missing
from dfact.data.confounders import PlausibleRange
from dfact.data.dataset import Dataset
from dfact.data.layout import Sizes, cut_into
from dfact.engine.requests import FusedSums
from dfact.errors import FederationError
from dfact.linalg.parts import PartLabels, parts_of
from dfact.sites import connections
from dfact.sites.connections import connected_by_few, separates
from dfact.sites.contract import contract_of
from dfact.sites.in_process import InProcessSites
from dfact.sites.leverage import products_of
from dfact.sites.messages import Message
from dfact.sites.packing import unpacked
from dfact.sites.policy import Policy
from dfact.sites.site_log import read_log
from dfact.sites.tasks import Task

Array = np.ndarray[Any, Any]
ROWS, ITEMS = 500, 12


def answers(seed: int = 1, n: int = ROWS, m: int = ITEMS) -> Array:
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(n, 3)) @ (rng.uniform(0.3, 1, (3, m)) * (rng.random((3, m)) < 0.6)) + rng.normal(size=(n, m))
    return np.clip(np.rint(latent + 2), 0, 4).astype(np.float32)


class Attack:
    """Tasks for a site north and another one, both with the default policy, and all sums of north that its coordinator reads."""

    def __init__(
        self, north: Any, south: Any, *runs: Callable[[InProcessSites], Any], policy: Policy | None = None, log: Path | None = None
    ) -> None:
        data = {"north": as_dataset(north), "south": as_dataset(south)}
        self.refused: list[str] = []
        logs = {} if log is None else {"north": log}
        contract = contract_of(dfact.concatenate(list(data.values())))
        with InProcessSites(data, policy=policy or Policy(), contract=contract, keep_bytes=True, logs=logs, wait=20) as sites:
            for run in runs:
                try:
                    run(sites)
                except FederationError as error:
                    self.refused.append(str(error))
            self._sent = [Message.decode(sent) for sent in sites.connections["north"].kept or ()]

    @property
    def kinds(self) -> set[str]:
        """The kinds of messages that have left north."""
        return {message.fields["kind"] for message in self._sent} - {"alive", "task", "contract", "refused", "failed"}

    @property
    def sums(self) -> list[Any]:
        found: list[Any] = []
        for message in self._sent:
            if message.fields["kind"] == "step" and message.fields["message"].get("kind") == "sums":
                whole = unpacked(Message(message.fields["message"], message.arrays))
                found += whole.parts if isinstance(whole, FusedSums) else [whole]
        return found


def small_steps(model: Any, count: int) -> list[Callable[[InProcessSites], Any]]:
    """Short fits with different seeds, whose sums are different numbers over the same rows."""
    return [lambda sites, seed=seed: sites.fit(model(seed)) for seed in range(count)]


def test_known_blocks_of_many_repeats_are_refused() -> None:
    """Each start of a fold is a matrix of squares without a block of rows: 580 known blocks gave all answers of a site."""
    settings: Any = {"n_blocks": (10, 1), "n_folds": 10, "n_repeats": 58, "random_state": 7}
    found = Attack(answers(1), answers(2), lambda sites: sites.select(dfact.ICQF(2, max_iter=1), {"n_components": [2]}, **settings))
    assert "more numbers about an item would have left than max_numbers" in found.refused[0]
    assert found.sums == []


def test_fits_with_many_seeds_end_at_a_share_of_the_answers() -> None:
    fits = small_steps(lambda seed: dfact.ExpectileMF(2, init="random", random_state=seed, ridge=0.1, max_iter=2), 30)
    found = Attack(answers(1), answers(2), *fits, policy=Policy(max_settings=100))
    arrays = {array.tobytes(): array for sums in found.sums for array in vars(sums).values() if np.ndim(array) == 2}
    assert sum(array.size for array in arrays.values()) / ITEMS <= 0.05 * ROWS
    assert "max_numbers" in found.refused[0]


def test_a_penalty_leaves_no_person_alone(tmp_path: Path) -> None:
    """A start and a penalty for which one person alone has a factor above 0: the coordinator sets no start, and small penalties."""
    with pytest.raises(FederationError, match="init of a task is"):
        Task.of("fit", dfact.ICQF(2, init=[[1.0] * ITEMS] * 2, beta=1.0))
    with pytest.raises(FederationError, match="beta of a task is"):
        Task.of("fit", dfact.ICQF(2, beta=50.0))
    log = tmp_path / "log.jsonl"
    fits = small_steps(lambda seed: dfact.ICQF(2 + seed % 2, beta=0.5 * (seed // 2 + 1), max_iter=1), 4)
    found = Attack(answers(1), answers(2), *fits, policy=Policy(max_numbers=1.0, max_settings=2), log=log)
    entries = [entry for entry in read_log(log) if "effective_rows" in entry]
    assert found.refused == []
    assert entries
    assert min(entry["effective_rows"] for entry in entries) >= 50
    rows = answers(1)
    for sums in found.sums:
        for products in (array for array in vars(sums).values() if np.shape(array)[-1:] == (ITEMS,) and np.any(array)):
            directions = np.atleast_2d(products) / np.linalg.norm(np.atleast_2d(products), axis=1, keepdims=True)
            cosines = np.abs(directions @ (rows / np.linalg.norm(rows, axis=1, keepdims=True)).T)
            assert cosines.max() < 0.9999, "sums are proportional to the answers of a person"


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("missing", [1, 20])
def test_incomplete_rows_are_not_the_difference_of_two_descriptions(missing: int) -> None:
    M = answers(1)
    M[123 : 123 + missing, 4] = np.nan
    policy = Policy(max_numbers=1.0)  # of 500 people, for the sake of the other rules
    found = Attack(M, answers(2), *(lambda sites, how=how: sites.describe(missing=how) for how in ("pairwise", "listwise")), policy=policy)
    if missing == 1:
        assert found.kinds == set()
        assert "lack an answer" in found.refused[0]
    else:
        assert "the rows differ from those of an earlier result in fewer than min_rows=50" in found.refused[-1]
        assert not any(abs(float(sums.rows) - (ROWS - missing)) < 1 for sums in found.sums if type(sums).__name__ == "Moments")


@pytest.mark.needs("questionnaires")
@pytest.mark.parametrize("others", [1, 60])
def test_rows_with_other_weights_are_not_the_difference_of_two_fits(others: int) -> None:
    weights = np.ones(ROWS)
    weights[321 : 321 + others] = 2.0
    fits = [lambda sites, use=use: sites.fit(dfact.FactorAnalysis(1, rotation=None), weights=use) for use in (False, True)]
    data = [as_dataset(M).with_weights(w) for M, w in ((answers(1), weights), (answers(2), np.ones(ROWS)))]
    found = Attack(*data, *fits, policy=Policy(max_numbers=1.0))
    if others == 1:
        assert found.kinds == set()
        assert "few rows have other weights than the rest" in found.refused[0]
    else:
        assert found.refused == [], "their difference is that of 60 people"


def with_days(usual: float, days: float) -> Dataset:
    values = np.full(ROWS, usual)
    values[77] = days
    data = as_dataset(answers(1), pd.DataFrame({"days": values}))
    return replace(data, confounder_ranges={"days": PlausibleRange(0.0, 365.0)})


@pytest.mark.parametrize("usual", [0.0, 365.0, 14.0])
def test_a_confounder_that_one_person_has_does_not_leave(usual: float) -> None:
    spread = np.linspace(0, 365, ROWS)
    south = replace(as_dataset(answers(2), pd.DataFrame({"days": spread})), confounder_ranges={"days": PlausibleRange(0.0, 365.0)})
    found = Attack(with_days(usual, 30.5), south, lambda sites: sites.fit(dfact.ICQF(2, max_iter=1)))
    assert found.kinds == set()
    assert "few rows decide a continuous confounder" in found.refused[0]


def test_factors_of_the_one_person_who_skipped_items_do_not_leave() -> None:
    M = answers(1)
    M[200, [3, 7, 11]] = np.nan
    found = Attack(M, answers(2), lambda sites: sites.fit(dfact.ICQF(3)))
    assert found.kinds == set()
    assert "fewer rows than min_cell=10 of the policy lack an answer" in found.refused[0]


def test_guesses_at_a_row_are_not_confirmed_by_the_digest() -> None:
    """Someone who knows all rows computes the digests of dfact and of its parts, without the key."""
    data = as_dataset(answers(1))
    found = Attack(data, answers(2), lambda sites: sites._hub.wait_for_sites())
    [described] = [message.fields["description"] for message in found._sent if message.fields["kind"] == "join"]
    again = Attack(data, answers(2), lambda sites: sites._hub.wait_for_sites())
    [same] = [message.fields["description"] for message in again._sent if message.fields["kind"] == "join"]
    assert described["fingerprint"] == same["fingerprint"] != data.fingerprint


@pytest.mark.parametrize("name", ["slice_variances", "init"])
def test_a_number_for_each_row_is_refused(name: str) -> None:
    chosen = np.full((2 * ROWS, 2) if name == "init" else 2 * ROWS, 1e-12)
    chosen[77] = 1e12
    other = [[1.0] * 2] * ITEMS if name == "init" else [1.0] * ITEMS
    model = dfact.ElasticCP(2, lam=1.0, n_init=1, max_iter=1, missing="fill", **{name: [chosen.tolist(), other]})
    found = Attack(answers(1), answers(2), lambda sites: sites.fit(model))
    assert f"{name} of a task is" in found.refused[0]
    assert found.sums == []


@pytest.mark.parametrize(
    ("lacking", "words"), [((7, 2), "lack an answer"), ((9, slice(None)), "lack an answer"), (None, "lack a confounder")]
)
def test_counts_of_a_few_who_lack_something_do_not_leave(lacking: Any, words: str) -> None:
    M, age = answers(1), np.linspace(20, 80, ROWS)
    full = replace(as_dataset(answers(2), pd.DataFrame({"age": age.copy()})), confounder_ranges={"age": PlausibleRange(0, 120)})
    if lacking is None:
        age[11] = np.nan
    else:
        M[lacking] = np.nan
    north = replace(as_dataset(M, pd.DataFrame({"age": age})), confounder_ranges={"age": PlausibleRange(0, 120)})
    found = Attack(north, full, lambda sites: sites.fit(dfact.PCA(2)))
    assert found.kinds == set()
    assert words in found.refused[0]


@pytest.mark.parametrize("shift", [0, 60])
def test_an_observed_lowest_answer_does_not_leave(shift: int, tmp_path: Path) -> None:
    """Data with negative entries that was imported without a range begins at its lowest answer."""
    M = np.random.default_rng(0).integers(40, 90, (300, 4)).astype(np.int32)
    M[17, 2] = 13
    north = dfact.import_array(M - shift, tmp_path / "north.zarr")
    declared = dfact.import_array(np.clip(M, 40, 90) - shift, tmp_path / "declared.zarr", valid_range=(-shift, 120 - shift))
    with InProcessSites({"north": north}, policy=Policy(), contract=contract_of(declared), keep_bytes=True, wait=20) as sites:
        with suppress(FederationError):  # whether it joins or not
            sites._hub.wait_for_sites()
        sent = [Message.decode(each) for each in sites.connections["north"].kept or ()]
    assert sent
    assert not any((array == 13 - shift).any() for message in sent for array in message.arrays)
    assert str(13 - shift) not in str([message.fields.get("text") for message in sent])


OPEN = {"chosen totals": "sites trust the totals of the coordinator"}
"""Attacks that find a person, as the page for the data office says, with the reason."""


def outcome_of(name: str) -> Outcome:
    with cut_into(**asdict(Sizes())):  # the usual ones
        return ATTACKS[name].run()


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.quick and name not in OPEN])
def test_an_attack_finds_nobody(name: str) -> None:
    outcome = outcome_of(name)
    assert outcome.tried > 0
    assert outcome.recovered == 0, outcome.stopped


@pytest.mark.parametrize("name", OPEN)
def test_open_attacks_find_persons(name: str) -> None:
    """If this fails, the attack is stopped, and the page for the data office should no longer say that it is not."""
    assert outcome_of(name).recovered > 0


def test_a_model_is_fitted_with_one_setting_of_its_penalties() -> None:
    """Fits that differ in a penalty differ by the persons whose factor it takes; with other numbers of components they may be repeated."""
    fits = small_steps(lambda number: dfact.ICQF(2 + number % 2, beta=(0.1, 0.1, 0.2)[number], max_iter=1), 3)
    found = Attack(answers(1), answers(2), *fits, policy=Policy(max_numbers=1.0))
    assert len(found.refused) == 1
    assert "expected max_settings=1 of the policy" in found.refused[0]
    with pytest.raises(FederationError, match="n_components of a task is 1, expected a whole number from 2"):
        Task.of("fit", dfact.NMF(1))


@pytest.mark.parametrize("others", [1, 60])
def test_products_of_almost_equal_items_stay_if_one_person_differs(others: int) -> None:
    north, south = answers(1), answers(2)
    for rows in (north, south):
        rows[:, 5] = rows[:, 0]
    north[200 : 200 + others, 5] = 4 - north[200 : 200 + others, 5]
    found = Attack(north, south, lambda sites: sites.fit(dfact.PCA(1)), policy=Policy(max_numbers=1.0))
    assert ("a combination of columns is 0 for all but a few rows" in "".join(found.refused)) is (others == 1)


def test_the_leverage_is_that_of_a_plain_computation() -> None:
    M = answers(1)[:90]
    M[3:20, 2] = np.nan
    sex, age = pd.Categorical(["f", "m"] * 45), np.linspace(20, 80, 90)
    data = as_dataset(M, pd.DataFrame({"sex": sex, "age": age}))
    gaps = np.isnan(M[:, 2])
    filled = np.where(np.isnan(M), 2.0, M)
    plain = np.column_stack([np.ones(90), age, sex.codes, filled, gaps])
    Q, _ = np.linalg.qr(plain)
    assert products_of(data).leverage == pytest.approx((Q**2).sum(axis=1).max())


@pytest.mark.parametrize("seed", range(3))
def test_cells_of_two_valued_items_are_those_of_their_tables(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = np.where(rng.random((300, 5)) < 0.3, 3.0, 1.0)
    X[:, 4] = rng.integers(0, 3, 300)  # has three values
    X[rng.random(X.shape) < [0.1, 0.0, 0.2, 0.0, 0.1]] = np.nan
    expected = [
        int(((X[:, i] == a) & (X[:, j] == b)).sum()) for i in range(4) for j in range(i + 1, 4) for a in (1.0, 3.0) for b in (1.0, 3.0)
    ]
    assert sorted(products_of(as_dataset(X)).cells.reshape(-1).tolist()) == sorted(expected)


def booklets(both: int) -> Array:
    """Answers of people who were given one of two booklets, and of some who were given both."""
    M = answers(1)
    M[both : ROWS // 2, ITEMS // 2 :] = np.nan
    M[ROWS // 2 :, : ITEMS // 2] = np.nan
    return M


@pytest.mark.parametrize("name", ["NMF", "ICQF", "ExpectileMF"])
@pytest.mark.parametrize("both", [1, 9, 10])
def test_few_persons_who_connect_two_booklets_are_not_told(name: str, both: int) -> None:
    """The parts of the columns are one with them, and two without."""
    model = getattr(dfact, name)(2, max_iter=1)
    found = Attack(booklets(both), answers(2), lambda sites: sites.fit(model), policy=Policy(max_numbers=1.0))
    labels = [sums.labels.astype(int).tolist() for sums in found.sums if isinstance(sums, PartLabels)]
    if both < 10:
        assert labels == []
        [refusal] = found.refused
        assert refusal.endswith("fewer rows than min_cell=10 of the policy connect columns, and more than none, in PartsPass")
    else:
        assert found.refused == []
        assert labels == [[0] * ITEMS]


@pytest.mark.parametrize("both", [0, 60, None])
def test_parts_that_enough_persons_decide_leave_and_the_fit_has_the_bits_of_the_pooled_one(both: int | None) -> None:
    """Booklets that nobody connects, some that sixty do, and answers that are missing at random."""
    north = answers(1) if both is None else booklets(both)
    south = answers(2)
    for rows in (north, south) if both is None else ():
        rows[np.random.default_rng(3).random(rows.shape) < 0.1] = np.nan
    data = {"north": as_dataset(north), "south": as_dataset(south)}
    pooled = dfact.concatenate(list(data.values()))
    expected = dfact.NMF(2, max_iter=3, executor="inline").fit(pooled)
    with InProcessSites(data, policy=Policy(max_numbers=1.0), contract=contract_of(pooled), keep_bytes=True, wait=20) as sites:
        found = sites.fit(dfact.NMF(2, max_iter=3))
        assert sites.failures == {}
        sent = [Message.decode(each) for each in sites.connections["north"].kept or ()]
    assert any(message.fields.get("message", {}).get("pass") == "PartsPass" for message in sent)
    np.testing.assert_array_equal(found.components_, expected.components_)


@pytest.mark.parametrize("kind", ["matrix", "sparse", "tensor"])
def test_columns_connected_by_few_are_those_of_a_plain_computation(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts differ from those of pairs with enough common rows, also if these are chains."""
    seen = set()
    for seed in range(40):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(connections, "_BATCH", int(rng.integers(1, 4)))
        shape = (60, 4, 5) if kind == "tensor" else (60, 9)
        X = np.where(rng.random(shape) < rng.choice([0.01, 0.1, 0.5]) * rng.random(shape[1:]), rng.integers(1, 5, shape), np.nan)
        data = as_dataset(X)
        if kind == "sparse":
            stored = sp.csr_array(np.nan_to_num(X))
            data = implicit_as_missing(as_dataset(stored))
        few = connected_by_few(data, 3)
        same = True
        for mode in range(1, X.ndim):
            rows = np.moveaxis(~np.isnan(X), mode, -1).reshape(len(X), -1, X.shape[mode]).astype(int)
            common = (np.einsum("npi,npj->nij", rows, rows) > 0).sum(axis=0)
            enough = np.where(common >= 3, 1.0, np.nan)
            same &= bool((parts_of(enough, 1) == parts_of(X, mode)).all())
        assert (few == []) is same, seed
        seen.add(same)
    assert seen == {True, False}


def test_parts_without_entries_that_a_fold_holds_out_do_not_leave() -> None:
    """One person of ten who connect two booklets may be the only one whom a fold leaves."""
    data = as_dataset(booklets(10))
    assert not separates(np.zeros(ITEMS, np.int64), data)
    assert separates(np.repeat([0, ITEMS // 2], ITEMS // 2), data)
    assert not separates(np.repeat([0, ITEMS // 2], ITEMS // 2), as_dataset(booklets(0)))
    assert not separates(np.zeros(ITEMS, np.int64), as_dataset(booklets(0))), "a total of all sites may connect more"
