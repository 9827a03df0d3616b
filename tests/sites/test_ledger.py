"""The ledger: many permitted results, over runs and restarts, do not add up to a row."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.data.coerce import as_dataset
from dfact.data.dataset import Dataset
from dfact.errors import FederationError, StoreError
from dfact.linalg.correlation import Moments
from dfact.sites.in_process import InProcessSites
from dfact.sites.ledger import Ledger, numbers_about_an_item, rows_apart
from dfact.sites.messages import Message
from dfact.sites.policy import Policy, words_that_leave
from dfact.sites.released import arrays_of
from dfact.sites.row_sets import RowSets, deal_rows
from dfact.sites.site import Site
from dfact.sites.tasks import Task

Array = np.ndarray[Any, Any]
FEW = "the rows differ from those of an earlier result in fewer than min_rows=50"


def answers(n: int = 300, m: int = 6, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 4, (n, m)).astype(np.float32)


class Taking:
    """A coordinator that takes everything."""

    def __init__(self) -> None:
        self.joined: list[Message] = []

    def call(self, message: Message) -> Message:
        if message.fields["kind"] == "join":
            self.joined.append(message)
        return Message({"kind": "joined"})


def join(data: Dataset, log: Path) -> Message:
    connection = Taking()
    Site("north", data, connection, policy=Policy(extremes=True), log=log).join()
    [message] = connection.joined
    return message


def sets_of(data: Dataset, task: Task) -> dict[str, int]:
    return {what: len(digests) for what, digests in RowSets(data, b"key").of_task(task)}


def test_data_of_one_more_person_does_not_join_after_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    join(as_dataset(answers()), log)
    join(as_dataset(answers()[::-1].copy()), log)
    changed = answers()
    changed[7, 2] = 3 - changed[7, 2]
    for data in (answers(301), answers()[:299], changed):
        with pytest.raises(FederationError) as error:
            join(as_dataset(data), log)
        assert words_that_leave(error.value) == f"{FEW} of the policy, and more than none"
    join(as_dataset(np.vstack([answers(), answers(60, seed=1)])), log)


def test_a_weight_that_changes_between_runs_is_told(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).uniform(1, 2, 300)
    join(as_dataset(answers()).with_weights(weights), tmp_path / "log.jsonl")
    weights[123] = 1.0
    with pytest.raises(FederationError, match="1 rows of weighted rows are new, and 1 of weighted rows are gone"):
        join(as_dataset(answers()).with_weights(weights), tmp_path / "log.jsonl")


@pytest.mark.needs("questionnaires")
def test_rows_with_all_answers_are_told_apart_from_all() -> None:
    M = answers()
    M[100:120, 4] = np.nan
    tasks = [Task.of("describe", None, missing="listwise"), Task.of("fit", dfact.FactorAnalysis(1, missing="listwise"))]
    for task in tasks:
        policy = Policy(extremes=True, min_cell=1, max_numbers=1e9)
        with InProcessSites({"north": M}, policy=policy) as sites, pytest.raises(FederationError, match=FEW):
            sites._run.carry_out(task)
        coded = replace(as_dataset(np.nan_to_num(M, nan=9).astype(np.uint8)), missing_code=9)
        assert sets_of(coded, task)["complete rows"] == sets_of(as_dataset(M), task)["complete rows"] == 280
    assert sets_of(as_dataset(M), Task.of("describe", None)) == {}


@pytest.mark.needs("questionnaires")
def test_rows_that_are_complete_in_a_scale_are_a_set() -> None:
    """The coordinator names the scales, and thereby chooses the rows."""
    M = answers()
    M[100:120, 4], M[120:190, 1] = np.nan, np.nan
    task = Task.of("describe", None, missing="listwise", scales={"a": ["0", "1"], "b": ["3", "4"]})
    found = sets_of(as_dataset(M), task)
    assert found == {"complete rows": 210, "rows that are complete in 'a'": 230, "rows that are complete in 'b'": 280}


def test_labels_tell_of_a_person_who_joined_though_all_answers_were_recoded(tmp_path: Path) -> None:
    labels = np.array([f"p{number}" for number in range(301)], object)
    join(replace(as_dataset(answers(300)), labels=labels[:300]), tmp_path / "log.jsonl")
    with pytest.raises(FederationError, match="1 rows of labels are new, and 0 of labels"):
        join(replace(as_dataset(answers(301, seed=4)), labels=labels), tmp_path / "log.jsonl")


def test_equal_rows_count_as_often_as_they_occur() -> None:
    first, other = (np.array(values, np.uint64) for values in ([1, 1, 2, 5], [1, 2, 2, 2, 6]))
    assert rows_apart(first, other) == (2, 3)
    assert len(next(RowSets(as_dataset(answers()), b"key").at_joining())[1]) == 300


def test_the_digest_of_the_data_cannot_be_guessed(tmp_path: Path) -> None:
    data = as_dataset(answers())
    with_age = data.with_confounders(pd.DataFrame({"age": np.r_[np.nan, np.linspace(20, 80, 299)]}))
    assert len(set(next(RowSets(with_age, b"key").at_joining())[1].tolist())) == 300
    first, again, other = (join(data, tmp_path / name).fields["description"]["fingerprint"] for name in ("a.jsonl", "a.jsonl", "b.jsonl"))
    assert first == again != other
    assert data.fingerprint not in (first, other)
    assert (tmp_path / "a.key").stat().st_mode & 0o077 == 0
    ledger = (tmp_path / "a.ledger").read_bytes()
    assert not any(row.tobytes() in ledger for row in answers()), "it holds keyed digests alone"


def test_numbers_about_an_item() -> None:
    cross = np.random.default_rng(0).normal(size=(20, 20))
    assert numbers_about_an_item(cross, 20) == 20
    assert numbers_about_an_item(np.full((20, 20), 300.0), 20) == 1
    assert numbers_about_an_item(np.tile(cross[:1], (20, 1)), 20) == 1
    assert numbers_about_an_item(cross[:3], 20) == 3
    assert numbers_about_an_item(cross[0], 20) == 1
    assert numbers_about_an_item(cross[np.tril_indices(20)], 20) == 21
    assert numbers_about_an_item(np.eye(4), 20) == 16 / 20, "products of factors depend on all items"
    zeros = np.zeros((3, 3))
    assert [about for _, about in arrays_of(Moments(zeros, zeros, zeros, zeros, np.zeros(())), None, 20)] == [3] * 5, "pairs of three items"


@pytest.mark.needs("questionnaires")
def test_numbers_about_an_item_are_counted_over_all_runs_and_restarts(tmp_path: Path) -> None:
    policy, log = Policy(extremes=True, min_rows=5, max_numbers=0.1), tmp_path / "log.jsonl"  # 30 numbers about an item
    spent = []
    for _ in range(2):  # the same numbers tell nothing new
        with InProcessSites({"north": answers()}, policy=policy, logs={"north": log}) as sites:
            sites.fit(dfact.FactorAnalysis(1, rotation=None))
            assert sites.failures == {}
        spent.append(Ledger(log).spent)
    assert 6 <= spent[0] == spent[1] <= 30
    with InProcessSites({"north": answers()}, policy=policy, logs={"north": log}) as sites, pytest.raises(FederationError) as error:
        sites.fit(dfact.ICQF(2, max_iter=50, tol=0))
    assert "more numbers about an item would have left than max_numbers" in str(error.value)
    assert spent[0] < Ledger(log).spent <= 30


def test_two_programs_spend_from_one_ledger(tmp_path: Path) -> None:
    ledgers = [Ledger(tmp_path / "log.jsonl") for _ in range(4)]

    def spend(number: int) -> float:
        return ledgers[number % 4].spend([(np.full(5, float(number)), 5)], 1e9)

    with ThreadPoolExecutor(4) as pool:
        totals = list(pool.map(spend, range(40)))
    assert sorted(totals) == list(range(1, 41))
    with pytest.raises(FederationError, match="max_numbers"):
        ledgers[0].spend([(np.full(5, 99.0), 5)], 40)
    assert ledgers[1].spent == 40, "what was refused is not counted"


def test_a_damaged_ledger_or_key_lets_nothing_leave(tmp_path: Path) -> None:
    log, connection = tmp_path / "log.jsonl", Taking()
    site = Site("north", as_dataset(answers()), connection, policy=Policy(extremes=True), log=log)
    (tmp_path / "log.ledger").write_text("{" * 5000)
    with pytest.raises(StoreError, match="nothing leaves"):
        site.join()
    (tmp_path / "log.ledger").unlink()
    join(as_dataset(answers()), log)
    (tmp_path / "log.key").unlink()
    with pytest.raises(StoreError, match="is not that of the ledger"):
        join(as_dataset(answers()), log)
    (tmp_path / "log.key").write_text("ab")
    with pytest.raises(StoreError, match="has 1 bytes, expected 32"):
        join(as_dataset(answers()), log)
    assert not connection.joined


def test_blocks_of_rows_are_drawn_by_the_key_of_the_site_once(tmp_path: Path) -> None:
    first = deal_rows(range(500), b"a", 10)
    np.testing.assert_array_equal(np.bincount(first), np.full(10, 50))
    np.testing.assert_array_equal(deal_rows(range(500), b"a", 10), first)
    assert (deal_rows(range(500), b"b", 10) != first).any()
    Ledger(tmp_path / "log.jsonl").pin_blocks(10)
    with pytest.raises(FederationError, match="n_blocks has 9 blocks of rows, expected 10"):
        Ledger(tmp_path / "log.jsonl").pin_blocks(9)


def test_repeats_and_seeds_of_a_selection_hold_out_the_same_rows() -> None:
    """With known blocks that differ by repeat, sums of squares give all answers; with these, no more than four secret sums."""
    M, known = answers(200, 6), []
    policy = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)
    with InProcessSites({"north": M}, policy=policy, keep_bytes=True) as sites:
        for seed in (1, 2):
            sites.select(dfact.ICQF(2, max_iter=1), {"n_components": [2]}, n_blocks=(4, 1), n_folds=4, n_repeats=3, random_state=seed)
        for sent in sites.connections["north"].kept or ():
            message = Message.decode(sent)
            known += [array for array in message.arrays if message.fields["kind"] == "step" and array.shape == (6, 6)]
    blocks = deal_rows(range(200), Ledger(None).key, 4)
    squares = {float((M[blocks != block, 0] ** 2).sum()) for block in range(4)} | {float((M[:, 0] ** 2).sum())}
    assert len(known) >= 6
    assert {float(gram[0, 0]) for gram in known} == squares
