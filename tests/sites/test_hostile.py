"""Hostile coordinators and sites: what they send is refused with words, and both ends carry out the next good run."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dfact
from benchmarks.fuzz.federation import Bench, Recording, serve
from dfact.errors import DfactError, FederationError
from dfact.sites.coordinator import UNKNOWN_RUN, Hub
from dfact.sites.in_process import InProcessSites, MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.tasks import Task

OPEN = Policy(extremes=True, min_cell=1, min_rows=3, max_share=1.0, max_numbers=1e9)
pytestmark = [pytest.mark.faults, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording.of(Task.of("fit", dfact.ICQF(2, max_iter=3, random_state=0)))


Change = Callable[[Message], Message]


class HostileCoordinator:
    """A coordinator that gives recorded answers, and changes those of a kind, or to the sums of a step."""

    def __init__(self, answers: list[bytes], kind: str, change: Change) -> None:
        self.answers, self.kind, self.change = iter(answers), kind, change
        self.told: list[str] = []

    def call(self, message: Message) -> Message:
        if message.fields["kind"] in ("failed", "refused"):
            self.told.append(message.fields["text"])
            return Message({"kind": "failed"})
        if message.fields["kind"] == "alive":
            return Message({"kind": "alive"})
        answer = Message.decode(next(self.answers))
        return self.change(answer) if answer.fields["kind"] == self.kind else answer


def with_fields(**fields: Any) -> Change:
    return lambda message: Message({**message.fields, **fields}, message.arrays)


def with_task(**members: Any) -> Change:
    return lambda message: Message({**message.fields, "task": {**message.fields["task"], **members}}, message.arrays)


def with_parameters(**parameters: Any) -> Change:
    return with_task(parameters={"n_components": 2, **parameters})


def selecting(**arguments: Any) -> Change:
    arguments = {"grid": {"n_components": [2, 3]}, "n_blocks": [1, 1], "random_state": 0} | arguments
    return with_task(kind="select", arguments=arguments)


def with_arrays(change: Callable[[list[Any]], list[Any]]) -> Change:
    return lambda message: Message(message.fields, change([np.array(array) for array in message.arrays]))


RUNS: dict[str, tuple[Change, str]] = {
    "unknown task": (with_task(kind="shell"), "a task is 'shell'"),
    "unknown member": (with_task(code="import os"), "other members than kind"),
    "unknown model": (with_task(model="os.system"), "the model 'os.system'"),
    "model of single rows": (with_task(model="GradeOfMembership"), "the model 'GradeOfMembership'"),
    "no model": (with_task(model=None), "has the model None"),
    "unknown parameter": (with_parameters(shell="ls"), "the parameter 'shell'"),
    "executor": (with_parameters(executor="tcp://10.0.0.1:8786"), "the parameter 'executor'"),
    "checkpoint": (with_parameters(checkpoint="/etc/cron.d/x"), "the parameter 'checkpoint'"),
    "callbacks": (with_parameters(callbacks=["print"]), "the parameter 'callbacks'"),
    "memory": (with_parameters(memory_limit="1 TB"), "the parameter 'memory_limit'"),
    "path of a start": (with_parameters(init="/etc/passwd"), "init of a task is '/etc/passwd', expected 'nndsvd'"),
    "loadings to start from": (with_parameters(init=[[1.0] * 6] * 2), "init of a task is"),
    "a large penalty": (with_parameters(beta=1e5), "beta of a task is 100000.0, expected a number of 1 digit from 0 to 1"),
    "a penalty of many digits": (with_parameters(beta=0.123), "beta of a task is 0.123, expected a number of 1 digit"),
    "bounds of loadings": (with_parameters(q_max=2.0), "the parameter 'q_max'"),
    "a number by row": (
        with_task(model="ElasticCP", parameters={"slice_variances": [[1e-12] * 120, [1.0] * 6]}),
        "slice_variances of a task is",
    ),
    "batches of rows": (with_task(model="ElasticCP", parameters={"batch_sizes": [1, 6]}), "the parameter 'batch_sizes'"),
    "many components": (with_parameters(n_components=60), "60 components need 600 rows"),
    "components as text": (with_parameters(n_components="2"), "n_components of a task is '2', expected a whole number from 2"),
    "path in a grid": (selecting(grid={"checkpoint": ["/etc/cron.d/x"]}), "the parameter 'checkpoint'"),
    "path of a selection": (selecting(checkpoint="/etc/cron.d/x"), "the argument 'checkpoint'"),
    "many folds": (selecting(n_folds=10_000, n_repeats=1000), "more than 10000 fits"),
    "tiny blocks": (selecting(n_blocks=[30, 1]), "30 blocks of rows, each with 2"),
    "no blocks": (selecting(n_blocks=[0, 1]), "0 blocks of rows"),
    "path of scales": (
        with_task(kind="describe", model=None, parameters={}, arguments={"scales": "/etc/passwd"}),
        "another form than by name",
    ),
    "another number of rows": (with_fields(sites=[["north", 59], ["south", 61]]), "expected the 120|do not name the 60 rows"),
    "a site twice": (with_fields(sites=[["north", 60], ["north", 60]]), "expected each once"),
    "many sites": (with_fields(sites=[[f"s{i}", 1] for i in range(20_000)]), "20000 sites"),
    "many rows": (with_fields(sites=[["north", 60], ["south", 1 << 39]]), "bytes of memory"),
    "no rows": (with_fields(sites=[["north", 60], ["south", -5]]), "not a number in range"),
    "a huge type": (with_fields(dtype="S99999999999"), "expected numbers"),
    "many modes": (with_fields(slice_shape=[6] * 1000), "1000 modes"),
    "a column twice": (with_fields(columns=["a"] * 6), "as each column"),
    "no summary": (with_fields(confounders=[{"name": "x", "n_rows": 120}]), "invalid"),
    "an endless sum": (
        with_fields(
            confounders=[
                {"name": "x", "n_rows": 120, "n_missing": 0, "levels": {}, "minimum": 0, "maximum": 1, "sums": [float("nan"), 1.0]}
            ]
        ),
        "without a finite sum",
    ),
    "much memory": (with_fields(memory=1 << 49), "has stated"),
    "many threads": (with_fields(threads=1 << 30), "no machine has"),
    "no arrays": (with_arrays(lambda _: []), "a description has the fields"),
    "other types of arrays": (with_arrays(lambda arrays: arrays[::-1]), "of a description is an array"),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_site_refuses_a_hostile_run_before_any_sums_leave(name: str, recording: Recording) -> None:
    change, words = RUNS[name]
    coordinator = HostileCoordinator(recording.answers["north"], "run", change)
    site = recording.site("north", coordinator)
    with pytest.raises(DfactError):
        serve(site)
    [told] = coordinator.told
    assert re.search(words, told), told
    coordinator.kind, coordinator.answers = "", iter(recording.answers["north"])
    serve(site)


TOTALS: dict[str, tuple[Change, str]] = {
    "other class": (with_fields(sums={"type": "none"}), "another type than expected"),
    "other shape": (with_arrays(lambda arrays: [arrays[0][:1], *arrays[1:]]), "array 0 of the sums is"),
    "other type": (with_arrays(lambda arrays: [each.astype("f4") for each in arrays]), "array 0 of the sums is"),
    "huge": (with_arrays(lambda arrays: [np.zeros(1 << 20), *arrays[1:]]), "array 0 of the sums is"),
    "fewer arrays": (with_arrays(lambda arrays: arrays[:-1]), "expected"),
    "not a number": (with_arrays(lambda arrays: [each * np.nan for each in arrays]), "not finite"),
}


@pytest.mark.parametrize("name", TOTALS)
def test_a_site_accepts_totals_of_the_sums_that_it_sent_alone(name: str, recording: Recording) -> None:
    change, words = TOTALS[name]
    coordinator = HostileCoordinator(recording.answers["north"], "sums", change)
    site = recording.site("north", coordinator)
    with pytest.raises(FederationError):
        serve(site)
    assert re.search(words, coordinator.told[0]), coordinator.told
    coordinator.kind, coordinator.answers = "", iter(recording.answers["north"])
    serve(site)


STEPS: dict[str, tuple[Change, str]] = {
    "a step ahead": (lambda message: with_fields(step=message.fields["step"] + 3)(message), "it computes something else"),
    "a step below none": (with_fields(step=-4), "to step -4"),
    "no step": (with_fields(step="1"), "expected a value of type int"),
    "another pass": (lambda message: with_fields(message=message.fields["message"] | {"pass": "X" * 1000})(message), "runs the pass 'XXX"),
    "another class": (
        lambda message: with_fields(message=message.fields["message"] | {"sums": {"type": "row_maximum"}})(message),
        "sums of type 'row_maximum'",
    ),
    "nothing": (lambda message: Message(with_fields(message={"kind": "code"})(message).fields), "contributes 'code'"),
    "one array for all": (
        lambda message: with_fields(
            message=message.fields["message"]
            | {"sums": {key: 0 if key != "type" else value for key, value in message.fields["message"]["sums"].items()}}
        )(message),
        "each of its .* arrays once",
    ),
    "other shape": (with_arrays(lambda arrays: [np.zeros((7, 7)), *arrays[1:]]), "array 0 of the sums is"),
    "not a number": (with_arrays(lambda arrays: [each * np.nan for each in arrays]), "site south: array 0 of the sums .* not finite"),
    "infinite": (with_arrays(lambda arrays: [*arrays[:-1], np.asarray(arrays[-1] + np.inf)]), "site south: array .* not finite"),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_coordinator_refuses_hostile_sums_of_a_site(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    change, words = STEPS[name]
    call, hostile = MemoryConnection.call, [True]

    def changed(self: MemoryConnection, message: Message) -> Message:
        hit = hostile[0] and self.name == "south" and message.fields["kind"] == "step" and message.fields["step"] >= 2
        return call(self, change(message) if hit else message)

    monkeypatch.setattr(MemoryConnection, "call", changed)
    rng = np.random.default_rng(0)
    data = {name: rng.integers(0, 4, (60, 6)).astype(np.float32) for name in ("north", "south")}
    with InProcessSites(data, policy=OPEN, wait=5) as sites:
        with pytest.raises(FederationError) as error:
            sites.fit(dfact.ICQF(2, max_iter=3))
        assert re.search(words, str(error.value) + sites.failures.get("south", "")), str(error.value)
        hostile[0] = False
        sites.fit(dfact.ICQF(2, max_iter=3))


def test_a_site_speaks_for_itself_alone(recording: Recording) -> None:
    hub = Hub(("north", "south"), wait=1, contract=None)
    join = Message.decode(recording.sent["north"][1])
    with pytest.raises(FederationError, match=r"describes data of \['north'\]"):
        hub.answer("south", join)
    with pytest.raises(FederationError, match="is not one of north, south"):
        hub.answer("west", join)
    for fields in ({"memory": -1}, {"threads": 0}, {"threads": 1 << 40}, {"memory": True}):
        with pytest.raises(FederationError, match=r"no machine has|expected a value"):
            hub.answer("north", Message({**join.fields, **fields}, join.arrays))
    hub.answer("north", Message({"kind": "refused", "text": "\x1b[2J\n\u202e" + "x" * 10_000}))
    hub.answer("south", Message({"kind": "alive"}))
    late = Message({"kind": "step", "run": "0" * 16, "step": 0, "message": {"kind": "nothing"}})
    assert hub.answer("north", late).fields == UNKNOWN_RUN.fields
    with pytest.raises(FederationError) as error:
        hub.wait_for_sites()
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 3000


def encoded(fields: str, arrays: Any = (), tail: bytes = b"") -> bytes:
    header = f'{{"fields": {fields}, "arrays": {json.dumps(arrays)}}}'.encode()
    return len(header).to_bytes(8, "little") + header + tail


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "header of -1 bytes"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "expected one within the message"),
        (encoded("[]"), "other members"),
        (encoded('{"a": ' + "[" * 30 + "]" * 30 + "}"), "nested deeper than 12"),
        (encoded('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"), "not JSON: RecursionError"),
        (encoded('{"a": "\\ud800"}'), "not JSON: ValueError"),
        (encoded('{"a": ' + "9" * 10_000 + "}"), "not JSON: ValueError"),
        (encoded("{}", [["<f8", [1 << 31, 1 << 31]]]), "ends after"),
        (encoded("{}", [["<f8", [1 << 31] * 7 + [0]]]), "no process can hold"),
        (encoded("{}", [["<f8", [-1]]], b"12345678"), "expected the type of a number"),
        (encoded("{}", [["|O", [1]]], b"12345678"), "expected the type of a number"),
        (encoded("{}", [], b"x"), "1 bytes after its arrays"),
        (bytes(2000), "at most 1000"),
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(FederationError, match=words):
        Message.decode(data, max_bytes=1000 if words == "at most 1000" else 1 << 20)


def test_texts_with_backslashes_pass() -> None:
    message = Message({"label": "C:\\ud8\\x \\\\ud800 é😀"})
    assert Message.decode(message.encode()).fields == message.fields


@pytest.mark.further
def test_mutated_messages_are_answered_or_refused() -> None:
    bench = Bench()
    outcomes = [bench.try_one(17, number) for number in range(40)]
    assert [message for verdict, message in outcomes if verdict == "failed"] == []
    assert {"refused"} <= {verdict for verdict, _ in outcomes} <= {"right", "refused"}
