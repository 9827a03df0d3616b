"""The policy of a site: what it forbids does not leave, the coordinator is told why without a value, and the log has all that leaves."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dfact
from dfact.data.coerce import as_dataset
from dfact.engine.passes import PartialSums
from dfact.engine.requests import FusedSums
from dfact.errors import DataError, FederationError, ParameterError, StoreError
from dfact.linalg.correlation import Moments
from dfact.linalg.row_points import RowMaximum
from dfact.models.binomial.growth import FigureSums
from dfact.models.fit_task import RUNTIME_PARAMETERS
from dfact.sites.description import Description
from dfact.sites.in_process import InProcessSites, MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy, words_that_leave
from dfact.sites.released import check_counts
from dfact.sites.settings import SETTINGS
from dfact.sites.site import Site
from dfact.sites.site_log import SiteLog, read_log, verify_log
from dfact.sites.tasks import Task

OPEN = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)


@dataclass
class Undeclared(PartialSums):
    """Sums of a package that says nothing of sites."""

    total: Any


class Recording:
    """A coordinator that takes everything, and keeps what leaves."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def call(self, message: Message) -> Message:
        self.messages.append(Message.decode(message.encode()))
        return Message({"kind": "joined"})


def answers(n: int = 200, m: int = 8, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 4, (n, m)).astype(np.float32)


def with_missing(count: int) -> np.ndarray[Any, Any]:
    M = answers()
    M[:count, 2] = np.nan
    return M


def without_answers(count: int) -> np.ndarray[Any, Any]:
    """Data in which these rows have no answer, and others lack half of them."""
    M = answers()
    M[:20, :4], M[20:40, 4:], M[:count] = np.nan, np.nan, np.nan
    return M


def confounded(**columns: Any) -> Any:
    return as_dataset(answers(), pd.DataFrame({name: pd.Categorical(values) for name, values in columns.items()}))


@pytest.mark.parametrize(
    ("data", "words", "withheld"),
    [
        (answers(37), "the data has fewer rows than min_rows=50", "37"),
        (with_missing(163), "a column has fewer observed entries than min_rows=50", "37"),
        (with_missing(3), "fewer rows than min_cell=10 of the policy lack an answer", "3 who skipped a question"),
        (without_answers(9), "fewer rows than min_cell=10 of the policy lack any answer", "9 without answers"),
        (confounded(sex=["f"] * 100 + ["m"] * 99 + [None]), "fewer rows than min_cell=10 of the policy lack a confounder", "'sex'"),
        (confounded(post=["bishop"] * 7 + ["none"] * 193), "a level of a confounder", "bishop"),
        (as_dataset(answers()).with_weights([1.0] * 199 + [2.0]), "few rows have other weights than the rest", "has 1.0 effective rows"),
        (confounded(sex=["f"] * 100 + ["m"] * 100, town=["a"] * 102 + ["b"] * 98), "levels of two confounders", "town"),
        (as_dataset(answers()).with_weights(np.arange(200)), "some rows have weight 0", "there are 1"),
        (as_dataset(answers()).with_weights([1e9] * 40 + [1.0] * 160), "the weights give an effective number of rows below", "40.0"),
        (
            confounded(sex=["f"] * 100 + ["m"] * 100).with_weights([1e9] * 40 + [1.0] * 60 + [1e9] * 100),
            "the weights give an effective number of rows below",
            "40.0 for 'f' of 'sex'",
        ),
    ],
)
def test_data_of_few_rows_is_refused_before_anything_leaves(data: Any, words: str, withheld: str) -> None:
    connection = Recording()
    site = Site("north", as_dataset(data), connection, policy=Policy(extremes=True))
    with pytest.raises(FederationError, match=withheld):
        site.join()
    [message] = connection.messages
    assert message.fields["kind"] == "refused"
    assert words in message.fields["text"]
    assert withheld not in message.fields["text"].replace("min_cell=10", "").replace("min_rows=50", "")
    assert not message.arrays


@pytest.mark.parametrize(
    ("policy", "task", "words"),
    [
        ({"tasks": ("describe",)}, Task.of("fit", dfact.PCA(2)), "forbids to fit"),
        ({"models": ("ICQF",)}, Task.of("fit", dfact.PCA(2)), "forbids the model PCA"),
        ({}, Task.of("fit", dfact.PCA(21)), "21 components need 210 rows"),
        ({}, Task.of("select", dfact.ICQF(), grid={"n_components": [2, 40]}, n_blocks=[3, 3]), "40 components need 400"),
        ({}, Task.of("select", dfact.ICQF(2), grid={"beta": [0, 1]}, n_blocks=[5, 5]), "it allows 4 blocks"),
        ({}, Task.of("select", dfact.ICQF(2), grid={"beta": [0, 1]}), "10 blocks of rows, each with 20"),
        (
            {"ranges": {"beta": (0.0, 0.5)}},
            Task.of("fit", dfact.ICQF(2, beta=0.6)),
            "beta of a task is 0.6, expected a number of 1 digit from 0 to 0.5",
        ),
        ({"ranges": {"ridge": (0.1, 9.0)}}, Task.of("fit", dfact.ExpectileMF(2, ridge=0.01)), "ridge of a task is 0.01"),
    ],
)
def test_tasks_are_refused(policy: dict[str, Any], task: Task, words: str) -> None:
    with pytest.raises(FederationError, match=words):
        Policy(**policy).check_task(Task.from_json(json.loads(json.dumps(task.as_json()))), 200)


def test_only_sums_leave_whose_class_declares_it_and_that_are_not_forbidden() -> None:
    zeros = np.zeros((2, 2))
    moments = Moments(np.full((2, 2), 90.0), zeros, zeros, zeros, np.asarray(90.0))
    Policy().check_sums(FusedSums([moments, moments]), 90, "two passes")
    with pytest.raises(FederationError, match="forbids MomentsPass: products of the columns"):
        Policy(forbidden_sums=("moments",)).check_sums(FusedSums([moments]), 90, "MomentsPass")
    found = RowMaximum(np.zeros(1), np.zeros(1), np.zeros((1, 2)))
    with pytest.raises(FederationError, match="shows single rows"):
        Policy().check_sums(FusedSums([found]), 90, "a search")
    with pytest.raises(FederationError, match="a pass returns 'Undeclared', which does not declare"):
        Policy().check_sums(FusedSums([Undeclared(zeros)]), 90, "a pass")


def test_numbers_of_rows_behind_sums_are_those_with_answers() -> None:
    zeros = np.zeros((2, 2))

    def refused(counts: Any, rows: float, policy: Policy) -> str:
        with pytest.raises(FederationError) as error:
            policy.check_sums(Moments(np.array(counts, float), zeros, zeros, zeros, np.asarray(rows)), 200, "MomentsPass")
        return words_that_leave(error.value)

    assert "min_rows=50" in refused([[200, 40], [40, 60]], 200, Policy())
    assert "min_rows=50" in refused([[30, 30], [30, 30]], 30, Policy()), "rows without missing answers alone"
    # The sums over all rows less those over the rows with both answers are the answers of one row.
    assert "min_cell=10" in refused([[200, 199], [199, 199]], 200, Policy())
    group = np.zeros(2)
    figures = FigureSums(np.zeros(2), np.zeros((4, 3)), np.zeros((4, 2)), group, np.zeros(()), group, group)
    Policy().check_sums(FusedSums([figures] * 5), 120, "five fits")  # each with two groups of 60 rows
    with pytest.raises(FederationError, match="over 45"):
        Policy().check_sums(figures, 90, "FigurePass")


def tables(codes: np.ndarray[Any, Any], low: int, high: int) -> tuple[Any, Any]:
    from dfact.questionnaires.polychoric import CountedTables, Levels

    """Count the tables of complete and missing (−1) answers plainly."""
    m = codes.shape[1]
    levels = Levels.between(np.full(m, float(low)), np.full(m, float(high)))
    slots = np.concatenate([codes[:, [j]] == np.arange(low, high + 1) for j in range(m)], axis=1).astype(np.int64)
    G = slots.T @ slots
    return CountedTables.of(G[np.tril_indices(len(G))].astype(np.int32), levels, len(codes)), levels


@pytest.mark.needs("questionnaires")
def test_a_single_skipped_answer_is_a_small_cell_of_tables() -> None:
    codes = np.random.default_rng(3).integers(0, 2, (400, 3))
    found, levels = tables(codes, 0, 1)
    Policy().check_sums(found, 400, "TablesPass", levels)
    for row, column in ((5, 0), (7, 2)):
        skipped = codes.copy()
        skipped[row, column] = -1
        found, levels = tables(skipped, 0, 1)
        with pytest.raises(FederationError, match="cells of fewer rows"):
            Policy().check_sums(found, 400, "TablesPass", levels)


def test_errors_other_than_refusals_are_not_quoted() -> None:
    assert words_that_leave(FederationError("the policy forbids it")) == "the policy forbids it"
    for error in (DataError("row 'anna' has the answer 7"), ParameterError("'anna'"), ValueError("'anna'")):
        text = words_that_leave(error)
        assert type(error).__name__ in text
        assert "anna" not in text


def test_the_log_has_each_message_that_leaves(tmp_path: Path) -> None:
    data = {name: answers(seed=seed) for seed, name in enumerate(("north", "south"))}
    log = tmp_path / "north.jsonl"
    policies = {"north": replace(OPEN, models=("ICQF",)), "south": OPEN}
    with InProcessSites(data, policies=policies, keep_bytes=True, logs={"north": log}) as sites:
        sites.fit(dfact.ICQF(2, max_iter=3))
        with pytest.raises(FederationError, match="site north: the policy forbids the model PCA"):
            sites.fit(dfact.PCA(2))
    sent = [Message.decode(data) for data in sites.connections["north"].kept or ()]
    leaving = [message for message in sent if message.fields["kind"] not in ("alive", "task")]
    entries = [entry for entry in read_log(log) if entry["way"] == "out"]
    assert len(entries) == len(leaving)
    for entry, message in zip(entries, leaving, strict=True):
        assert [each["sha256"] for each in entry["arrays"]] == [hashlib.sha256(array.tobytes()).hexdigest() for array in message.arrays]
        assert entry["sha256"] == hashlib.sha256(json.dumps(message.fields, ensure_ascii=False).encode()).hexdigest()
        assert entry.get("fields", message.fields) == message.fields
        assert entry["rows"] == (200 if message.arrays else 0)
    assert [entry["what"] for entry in entries][0 :: len(entries) - 1] == ["contract", "failed"]


def logged(path: Path) -> None:
    log = SiteLog(path)
    log.record(Message({"kind": "join"}, [np.ones(3)]), 200)
    log.run = "1 fit"
    log.record(Message({"kind": "step", "step": 0, "message": {"kind": "sums", "pass": "P", "sums": {"type": "none"}}}), 200)
    log.record(Message({"kind": "sums", "pass": "P", "sums": {"type": "none"}}), way="in")


def test_a_line_that_was_removed_or_altered_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    for _ in range(2):  # a program that is started again goes on with the chain
        logged(path)
    lines = path.read_text().splitlines(keepends=True)
    assert verify_log(path) == (6, [], json.loads(lines[-1])["chain"])
    entry = json.loads(lines[1])
    changes = {
        3: lines[:2] + lines[3:],
        1: lines[1:],
        2: [lines[0], json.dumps({**entry, "rows": 99999}) + "\n", *lines[2:]],
        4: [*lines[:3], lines[4], lines[3], lines[5]],
    }
    for number, changed in changes.items():
        path.write_text("".join(changed))
        with pytest.raises(StoreError, match=f"line {number} of the log .* was altered, or one before it was removed"):
            verify_log(path)


def test_a_line_that_a_crash_has_cut_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    logged(path)
    whole = path.read_text()
    path.write_text(whole + whole[:100])
    assert [entry["what"] for entry in read_log(path)] == ["join", "P", "P", "line 4 was cut"]
    logged(path)
    complete, cut, _ = verify_log(path)
    assert (complete, cut) == (6, [4])
    path.write_text("not a log\n")
    with pytest.raises(StoreError, match="damaged"):
        read_log(path)
    with pytest.raises(StoreError, match="nothing leaves"):
        logged(path)


def test_the_log_names_the_task_the_peer_and_what_came_in(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with InProcessSites({"north": answers()}, policy=OPEN, logs={"north": log}) as sites:
        sites.fit(dfact.ICQF(2, max_iter=2, random_state=7))
    came = [entry for entry in read_log(log) if entry["way"] == "in"]
    [run] = [entry for entry in came if entry["what"] == "run"]
    assert run["fields"]["task"] == Task.of("fit", dfact.ICQF(2, max_iter=2, random_state=7)).as_json()
    assert {entry["peer"] for entry in came} == {"in this process"}
    assert any(entry["sums"] != "run" and entry["arrays"] for entry in came), "digests of totals"
    assert verify_log(log)[1] == []


def test_a_message_that_cannot_be_logged_does_not_leave(tmp_path: Path) -> None:
    connection = Recording()
    site = Site("north", as_dataset(answers()), connection, policy=OPEN, log=tmp_path / "missing" / "log.jsonl")
    with pytest.raises(dfact.DfactError, match="nothing leaves"):
        site.join()
    assert connection.messages == []


def test_a_site_tells_no_answer_by_refusals(tmp_path: Path) -> None:
    """A coordinator that halves the ranges of its contract would find the highest answer of one person."""
    data = replace(as_dataset(answers()), valid_range=np.tile([0.0, 3.0], (8, 1)))
    sent: list[str] = []

    class Halving:
        def __init__(self, high: float) -> None:
            limits = np.array(data.valid_range)
            limits[2, 1] = high
            self.contract = replace(Description.of("contract", data, extremes=True), extremes=False, valid_range=limits)

        def call(self, message: Message) -> Message:
            sent.append(message.fields["kind"])
            return self.contract.message("contract")

    def join(high: float, policy: Policy) -> str:
        with pytest.raises(dfact.DfactError) as error:
            Site("north", data, Halving(high), policy=policy, log=tmp_path / "log.jsonl").join()
        return words_that_leave(error.value)

    assert "beyond the range of the contract" in join(1.5, Policy())
    assert "another than the 1 that this site has been shown first" in join(2.5, Policy()), "which a program started again knows"
    assert "beyond" in join(2.0, Policy(max_contracts=9, max_refusals=3))
    assert "has refused max_refusals=3 times" in join(2.2, Policy(max_contracts=9, max_refusals=3))
    assert "join" not in sent


def test_nothing_of_the_data_leaves_before_it_keeps_the_contract() -> None:
    """The lowest answer is the offset of data that was imported without a range."""
    connection = Recording()
    with pytest.raises(FederationError, match="give the coordinator a contract"):
        Site("north", replace(as_dataset(answers()), offset=np.full(8, 13.0)), connection, policy=Policy()).join()
    contract = Description.of("contract", as_dataset(answers()), extremes=True)
    text = words_that_leave(refused(lambda: contract.difference(replace(as_dataset(answers()), offset=np.full(8, 13.0)))))
    assert "do not begin at 0" in text
    assert "13" not in text + str([message.fields for message in connection.messages])
    assert [message.fields["kind"] for message in connection.messages] == ["contract", "refused"]


def refused(run: Callable[[], Any]) -> FederationError:
    with pytest.raises(FederationError) as error:
        run()
    return error.value


def test_numbers_of_rows_that_no_site_has_are_refused() -> None:
    zeros = np.zeros((2, 2))
    for count in (1e32, -1.0, 91.0):
        with pytest.raises(FederationError, match="expected at most the 90 rows"):
            check_counts(FusedSums([Moments(np.full((2, 2), count), zeros, zeros, zeros, np.asarray(90.0))]), 90)
    check_counts(Moments(np.full((2, 2), 90.0), zeros, zeros, zeros, np.asarray(90.0)), 90)


def test_a_number_of_rows_that_no_process_holds_ends_the_run_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    call = MemoryConnection.call

    def changed(self: MemoryConnection, message: Message) -> Message:
        if self.name == "south" and message.fields["kind"] == "join":
            described = message.fields["description"] | {"sites": [["south", 1 << 38]]}
            message = Message({**message.fields, "description": described}, message.arrays)
        return call(self, message)

    monkeypatch.setattr(MemoryConnection, "call", changed)
    words = r"site south states \d+ rows; the tables of all rows take"
    with (
        InProcessSites({"north": answers(), "south": answers(seed=1)}, policy=OPEN, wait=5) as sites,
        pytest.raises(FederationError, match=words),
    ):
        sites.fit(dfact.PCA(2))
    told = sites.failures.get("north", "bytes of memory")
    assert "bytes of memory" in told or "do not name the 200 rows of south" in told, (
        "a site that has begun is told what ended the run first"
    )


def test_passes_are_counted_over_all_runs() -> None:
    with InProcessSites({"north": answers()}, policy=replace(OPEN, max_passes=15)) as sites:
        sites.fit(dfact.ICQF(2, max_iter=3))
        with pytest.raises(FederationError, match="the policy allows 15 passes"):
            sites.fit(dfact.ICQF(2, max_iter=30, tol=0))


def test_a_file_with_other_fields_or_types_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    for text, words in (("min_row = 3", "has the field 'min_row'"), ("min_rows = -1", "at least 0"), ('tasks = "fit"', "a list of texts")):
        path.write_text(text)
        with pytest.raises(ParameterError, match=words):
            Policy.read(path)
    for text in ("ranges = 3", "[ranges]\nshell = [0, 1]", "[ranges]\nbeta = [1, 0]"):
        path.write_text(text)
        with pytest.raises(ParameterError, match="expected a table of"):
            Policy.read(path)
    path.write_text('models = ["ICQF"]\nmin_cell = 5\n[ranges]\nbeta = [0, 0.5]')
    assert Policy.read(path) == Policy(models=("ICQF",), min_cell=5, ranges={"beta": (0.0, 0.5)})


def test_parameters_that_a_coordinator_may_set_are_parameters_with_valid_defaults() -> None:
    for name, settings in SETTINGS.items():
        defaults = getattr(dfact, name)().get_params(deep=False)
        assert set(settings) <= set(defaults) - set(RUNTIME_PARAMETERS)
        if name != "Admixture":  # whose default start looks for single individuals
            for parameter, setting in settings.items():
                assert setting.permits(defaults[parameter]), (name, parameter)


@pytest.mark.parametrize(
    "model",
    [
        dfact.ElasticCP(1, slice_variances=[[1e-12] * 200, [1.0] * 8]),
        dfact.ElasticCP(1, init=[[[0.0]] * 200, [[1.0]] * 8]),
        dfact.ElasticCP(1, laplace_rate=1e9, noise_variance=1.0),
        dfact.ICQF(1, init=[[1.0] * 8], beta=0.5),
        dfact.ICQF(1, beta=50.0),
        dfact.ICQF(1, beta=0.123),
        dfact.ICQF(1, w_max=2.0),
        dfact.ICQF(1, q_max=2.0),
        dfact.ICQF(1, bounds=(0.0, 1.0)),
        dfact.ICQF(1, init="random"),
        dfact.NMF(1, alpha_W=0.1, l1_ratio=1.0),
        dfact.ExpectileMF(1, ridge=1.0002),
        dfact.NMF(1, alpha_W=50.0),
        dfact.ExpectileMF(1, tau=0.999999 - 1e-9),
        dfact.CPALS(2),
    ],
)
def test_a_coordinator_chooses_no_row_by_its_parameters(model: Any) -> None:
    with pytest.raises(FederationError, match=r"coordinator may set|from no coordinator|have not been reviewed"):
        Task.of("fit", model)
