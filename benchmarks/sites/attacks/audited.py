"""The attacks of an audit of 6ce7c06. Its figures stand in the table for those that cannot run there as they are."""

import itertools
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import dfact
from benchmarks.sites.attacks.harness import Array, Outcome, answers, attack, coordinator, matches
from dfact.data.coerce import as_dataset
from dfact.data.confounders import PlausibleRange
from dfact.errors import DfactError
from dfact.selection.cross_validation import block_cross_validation
from dfact.sites.contract import contract_of
from dfact.sites.in_process import InProcessSites, MemoryConnection
from dfact.sites.messages import Message
from dfact.sites.policy import Policy
from dfact.sites.site import Site

N, M = 500, 12


def two_sites(n: int = N, m: int = M) -> dict[str, Any]:
    return {"north": answers(n, m, 1), "south": answers(n, m, 2)}


def scaled(row: Array) -> Array:
    return row * np.sign(row.sum())


@attack("p1", honest=True, audit="500 of 500")
def select_folds() -> Outcome:
    """Solve for all answers from a selection: each start has the sums of squares without a known block of rows."""
    sites, known = two_sites(), []
    original = block_cross_validation.assign_all_folds

    def kept(*arguments: Any, **settings: Any) -> Any:
        known.append(original(*arguments, **settings))
        return known[-1]

    block_cross_validation.assign_all_folds = kept
    try:
        with coordinator(sites) as attacker:
            model, grid = dfact.ICQF(2, max_iter=1), {"n_components": [2]}
            attacker.select(model, grid, n_blocks=(10, 1), n_folds=10, n_repeats=58, random_state=7)
            grams = [part.gram for part in attacker.sums("svd_gram")]
    finally:
        block_cross_validation.assign_all_folds = original
    if not grams or not known:
        return Outcome(0, N, attacker.words)
    rows = sites["north"]
    masks = [(~fold.held_out(k))[fold.rows[:N]] for fold in known[0] for k in range(10)]
    count = min(len(grams), len(masks))
    design = np.stack([mask[:, 0] for mask in masks[:count]]).astype(float)  # one block of columns: all have the same
    squares = np.linalg.lstsq(design, np.array([gram.diagonal() for gram in grams[:count]]), rcond=None)[0]
    found = np.sqrt(np.maximum(squares, 0))
    return Outcome(int((np.abs(found - rows).max(axis=1) < 1e-3).sum()), N, attacker.words)


@attack("p2", honest=True, audit="3 of 3", quick=True)
def given_start() -> Outcome:
    """Give loadings to start from and a penalty found by halving, so that only the highest scorer has a factor above 0."""
    sites, found, tries = two_sites(m=20), set(), 3
    rng = np.random.default_rng(0)
    with coordinator(sites) as attacker:
        for _ in range(tries):
            q, low, high = rng.uniform(0, 4, 20), 0.0, 1e5
            for _ in range(40):
                beta = (low + high) / 2
                attacker.forget()
                attacker.fit(dfact.ICQF(1, init=[q.tolist()], beta=beta, max_iter=1, bounds=(0.0, 1e4)))
                sums = attacker.sums("bounded_nmf")
                if not sums:
                    break
                if sums[0].gram[0, 0] <= 0:
                    high = beta
                    continue
                row = sums[0].cross[0] / np.sqrt(sums[0].gram[0, 0])
                if np.abs(row - np.rint(row)).max() < 1e-3:
                    found.update(matches(np.rint(row), sites["north"]))
                    break
                low = beta
    return Outcome(min(len(found), tries), tries, attacker.words)


@attack("p3", honest=True, audit="1 of 1", quick=True)
def listwise() -> Outcome:
    """Describe complete rows: the sums over all answers less those over complete rows are the one incomplete row."""
    sites = two_sites(m=10)
    person = sites["north"][123].copy()
    sites["north"][123, 4] = np.nan
    with coordinator(sites) as attacker:
        for missing in ("pairwise", "listwise"):
            attacker.describe(missing=missing)
        items, moments = attacker.sums("item_sums"), attacker.sums("moments")
    if not items or not moments:
        return Outcome(0, 1, attacker.words)
    low, high = (pick(np.vstack(list(sites.values())), axis=0) for pick in (np.nanmin, np.nanmax))
    found = items[-1].sums - moments[-1].sums.diagonal() + (low + high) / 2 * (items[-1].counts - moments[-1].rows)
    found, person = np.delete(found, 4), np.delete(person, 4)
    return Outcome(int(np.allclose(found, person, atol=1e-3)), 1, attacker.words)


@attack("p4", honest=True, audit="1 of 1", quick=True)
def weights_on_and_off() -> Outcome:
    """Fit with and without weights: the difference is the one row with another weight."""
    sites, weights = two_sites(m=10), np.ones(N)
    weights[321] = 2.0
    rows = sites["north"]
    data = {name: as_dataset(each).with_weights(weights if name == "north" else np.ones(N)) for name, each in sites.items()}
    contract = contract_of(as_dataset(np.vstack(list(sites.values()))).with_weights(np.r_[weights, np.ones(N)]))
    with coordinator(data, contract=contract) as attacker:
        for use in (False, True):
            attacker.fit(dfact.FactorAnalysis(1, rotation=None), weights=use)
        plain, weighted = attacker.sums("moments"), attacker.sums("weighted_moments")
    if not plain or not weighted:
        return Outcome(0, 1, attacker.words)
    pooled = np.vstack(list(sites.values()))
    shift = (pooled.min(axis=0) + pooled.max(axis=0)) / 2
    found = [scale * weighted[0].sums.diagonal() - plain[0].sums.diagonal() + shift for scale in (1.0, 2.0)]
    return Outcome(int(any(np.allclose(each, rows[321], atol=1e-3) for each in found)), 1, attacker.words)


@attack("p5", honest=True, audit="1 of 1", quick=True)
def lonely_confounder() -> Outcome:
    """Read the products of the answers with a continuous confounder that is 0 for all but one person."""
    sites, days = two_sites(m=10), np.zeros(N)
    days[77] = 30.5

    def data(values: Array, confounder: Array) -> Any:
        found = as_dataset(values, pd.DataFrame({"days": confounder}))
        return replace(found, confounder_ranges={"days": PlausibleRange(0.0, 365.0)})

    others = np.linspace(0, 365, N)
    contract = contract_of(data(np.vstack(list(sites.values())), np.r_[days, others]))
    with coordinator({"north": data(sites["north"], days), "south": data(sites["south"], others)}, contract=contract) as attacker:
        attacker.fit(dfact.ICQF(2, max_iter=1))
        sums = attacker.sums("bounded_nmf")
    if not sums:
        return Outcome(0, 1, attacker.words)
    gram, cross = sums[0].gram, sums[0].cross
    found = [cross[row] / np.sqrt(gram[row, row]) for row in range(2, len(gram))]
    return Outcome(int(any(np.allclose(each, sites["north"][77], atol=1e-3) for each in found)), 1, attacker.words)


class Scripted:
    """A dishonest coordinator that answers a site as it likes, with another contract in each call of :meth:`ask`."""

    def __init__(self, data: Any) -> None:
        self._contract: Any = None
        self._told = ""
        self._site = Site("north", as_dataset(data), self, policy=Policy())

    def call(self, message: Message) -> Message:
        if message.fields["kind"] == "contract" or (message.fields["kind"] == "join" and not self._told):
            return self._contract.message("contract")  # type: ignore[no-any-return]  # before the contract came with the answer to joining
        if message.fields["kind"] == "refused":
            self._told = message.fields["text"]
        return Message({"kind": message.fields["kind"]})

    def ask(self, contract: Any) -> str:
        """Return the words with which the site does not join; nothing if it does."""
        self._contract, self._told = contract, ""
        try:
            self._site.join()
        except DfactError as error:
            self._told = self._told or str(error)
        return self._told


@attack("p6", honest=False, audit="1 of 1, 12 joins", quick=True)
def range_probe() -> Outcome:
    """Halve the ranges of the contract until the site refuses: the highest answer of an item."""
    rng, m = np.random.default_rng(0), 6
    north = rng.normal(50, 8, (N, m)).round(1).astype(np.float32)
    north[17, 2] = 103.7
    contract = contract_of(as_dataset(np.vstack([np.full(m, 0), np.full(m, 200), north]).astype(np.float32)))
    asked, low, high, words = Scripted(north), 0.0, 200.0, ""
    for _ in range(14):
        middle = (low + high) / 2
        limits = np.tile([[0.0, 200.0]], (m, 1))
        limits[2] = 0.0, middle
        told = asked.ask(replace(contract, valid_range=limits, extremes=False))
        words = told if told and "range" not in told else words
        if "range" in told and "max_contracts" not in told:
            low = middle
        else:
            high = middle
    return Outcome(int(abs(high - 103.7) < 0.05), 1, words or "not refused")


@attack("p8", honest=True, audit="1 of 1", quick=True)
def factors_of_who_skipped() -> Outcome:
    """Solve for the factors of the one person who skipped four items, from the sums by item of the last pass."""
    sites, k = two_sites(m=24), 3
    skipped = [3, 7, 11, 15]
    sites["north"][200, skipped] = np.nan
    with coordinator(sites) as attacker:
        model = attacker.fit(dfact.ICQF(k, max_iter=30))
        sums = attacker.sums("bounded_nmf_rows")
        if model is None or not sums:
            return Outcome(0, 1, attacker.words)
        truth = np.asarray(attacker.sites.results["north"].row_factors())[200]
    Q, total, residual = model.components_, sums[-1].moments[1], sums[-1].items[2]
    predicted = sums[-1].factors[0] @ Q[:, skipped] - (total - residual)[skipped]
    found = np.linalg.lstsq(Q[:, skipped].T.astype(float), predicted, rcond=None)[0]
    return Outcome(int(np.allclose(found, truth, rtol=1e-3, atol=1e-4)), 1, attacker.words)


@attack("p9", honest=True, audit="1 of 1, 6,912 guesses", quick=True)
def digest_guesses() -> Outcome:
    """Try the answers of one person until the digest of the data is right; all other rows are known."""
    north = answers(200, 4, 1)
    with coordinator({"north": north}) as attacker:
        time.sleep(0.3)
        joined = [message for message in attacker.messages() if message.fields["kind"] == "join"]
    if not joined:
        return Outcome(0, 1, "; ".join(attacker.sites.failures.values()))
    digest, guess = joined[0].fields["description"]["fingerprint"], north.copy()
    for values in itertools.product(range(5), repeat=4):
        guess[77] = values
        if as_dataset(guess).fingerprint == digest:
            return Outcome(int(np.array_equal(values, north[77])), 1, "not refused")
    return Outcome(0, 1, "no guess has the digest, which has a key")


@attack("p10", honest=True, audit="5 of 5", quick=True)
def variances_by_row() -> Outcome:
    """Give all rows but one a variance near 0 in ElasticCP: its sums are those of that row."""
    sites, targets, found = two_sites(), (0, 77, 123, 321, 499), 0
    with coordinator(sites) as attacker:
        for target in targets:
            variances = np.full(2 * N, 1e-12)
            variances[target] = 1e12
            attacker.forget()
            settings = {"n_init": 1, "max_iter": 1, "solver": "bcd", "missing": "fill", "random_state": 0}
            model = dfact.ElasticCP(1, lam=1.0, l1_ratio=0.0, slice_variances=[variances.tolist(), [1.0] * M], **settings)
            attacker.fit(model)
            sums = attacker.sums("cp")
            if sums:
                row = scaled(sums[0].cross[0] / np.sqrt(sums[0].gram[0, 0]))
                found += bool(np.array_equal(np.rint(row), sites["north"][target]))
    return Outcome(found, len(targets), attacker.words)


@attack("p12", honest=True, audit="a line removed or altered is not noticed", quick=True)
def log_of_an_attack() -> Outcome:
    """Alter, remove and cut lines of the log of a fit, and leave its parameters out of it: four attempts, each counted if unnoticed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.jsonl"
        with coordinator({"north": answers(N, M, 1)}, logs={"north": log}) as attacker:
            attacker.fit(dfact.FactorAnalysis(1, rotation=None))
        text = log.read_text()
        lines = text.splitlines(keepends=True)
        altered = json.dumps({**json.loads(lines[2]), "rows": 99999}) + "\n"
        unnoticed = [not _noticed(log, changed) for changed in ([*lines[:2], *lines[3:]], [*lines[:2], altered, *lines[3:]])]
        log.write_text(text + text[:100])
        unnoticed += ['"n_components"' not in text and '"rotation"' not in text, not _reads(log)]
    return Outcome(sum(unnoticed), 4, "dfact site log --verify names the line" if not any(unnoticed) else "not noticed")


def _noticed(log: Path, lines: list[str]) -> bool:
    from dfact.sites import site_log

    log.write_text("".join(lines))
    try:
        getattr(site_log, "verify_log", site_log.read_log)(log)
    except DfactError:
        return True
    return False


def _reads(log: Path) -> bool:
    from dfact.sites.site_log import read_log

    try:
        read_log(log)
    except DfactError:
        return False
    return True


@attack("p13", honest=True, audit="4 counts of 1", quick=True)
def counts_at_joining() -> Outcome:
    """Read counts of single persons from what leaves at joining: skipped answers, missing confounders, rows without answers."""
    rows, age = answers(400, 6, 1), np.linspace(20, 80, 400)
    rows[7, 2], rows[9], age[11] = np.nan, np.nan, np.nan
    data = replace(as_dataset(rows, pd.DataFrame({"age": age})), confounder_ranges={"age": PlausibleRange(0, 120)})
    with coordinator({"north": data}, contract=contract_of(data)) as attacker:
        time.sleep(0.3)
        joined = [message for message in attacker.messages() if message.fields["kind"] == "join"]
    if not joined:
        return Outcome(0, 3, "; ".join(attacker.sites.failures.values()))
    described, observed = joined[0].fields["description"], joined[0].arrays[1]
    small = [0 < 400 - observed.min() < 10, 0 < described["n_empty_rows"] < 10, 0 < described["confounders"][0]["n_missing"] < 10]
    return Outcome(int(sum(map(bool, small))), 3, "not refused")


@attack("p14", honest=True, audit="extremes", quick=True)
def offset_at_joining() -> Outcome:
    """Read the lowest answer of a site from what leaves at joining, where no range was declared."""
    rng, items = np.random.default_rng(0), list("abcd")
    north, south = (rng.integers(40, 90, (300, 4)) for _ in range(2))
    north[17, 2] = 13
    with tempfile.TemporaryDirectory() as folder:
        data = {}
        for name, rows in (("north", north), ("south", south)):
            pd.DataFrame(rows, columns=items).to_csv(f"{folder}/{name}.csv", index=False)
            data[name] = dfact.import_table(f"{folder}/{name}.csv", f"{folder}/{name}.zarr", items=items)
        with coordinator(data, contract=contract_of(data["south"])) as attacker:
            time.sleep(0.3)
            sent = list(attacker.messages())
            words = "; ".join(attacker.sites.failures.values())
    joined = any(message.fields["kind"] == "join" and 13 in message.arrays[0] for message in sent)
    told = any("13" in str(message.fields.get("text", "")) for message in sent)
    return Outcome(int(told or joined), 1, words or "not refused")


@attack("t3", honest=False, audit="1 of 1: MemoryError", quick=True)
def huge_rows() -> Outcome:
    """As a site, state 2³³ rows: counted if the coordinator ends with another error than one that names the site."""
    rows, age = answers(200, 6, 1), np.linspace(20, 80, 200)
    data = replace(as_dataset(rows, pd.DataFrame({"age": age})), confounder_ranges={"age": PlausibleRange(0, 120)})
    call = MemoryConnection.call

    def lying(self: MemoryConnection, message: Message) -> Message:
        if self.name == "south" and message.fields["kind"] == "join":
            described = dict(message.fields["description"])
            described["sites"] = [["south", 1 << 33]]
            described["confounders"] = [{**each, "n_rows": 1 << 33} for each in described["confounders"]]
            message = Message({**message.fields, "description": described}, message.arrays)
        return call(self, message)

    return _by_site(lying, {"north": data, "south": data}, lambda sites: sites.fit(dfact.PCA(2)), contract_of(data))


@attack("t4", honest=False, audit="NaN, without the site's name", quick=True)
def sums_that_are_no_numbers() -> Outcome:
    """As a site, send NaN, infinity and counts of 10³² in sums: each is counted if the error does not name the site, or there is none."""
    call, outcomes = MemoryConnection.call, []
    changes = [
        lambda a: a * np.nan if a.dtype.kind == "f" else a,
        lambda a: a + np.inf if a.dtype.kind == "f" else a,
        lambda a: (a * 1e30).astype(a.dtype) if a.dtype.kind == "f" and a.ndim == 2 else a,
    ]
    for change in changes:

        def lying(self: MemoryConnection, message: Message, change: Any = change) -> Message:
            if self.name == "south" and message.fields["kind"] == "step":
                message = Message(message.fields, [np.asarray(change(np.array(each))) for each in message.arrays])
            return call(self, message)

        outcomes.append(_by_site(lying, two_sites(), lambda sites: sites.fit(dfact.FactorAnalysis(2, rotation=None)), None))
    return Outcome(sum(each.recovered for each in outcomes), len(outcomes), outcomes[0].stopped)


def _by_site(lying: Any, data: Any, run: Any, contract: Any) -> Outcome:
    """Return whether a lie of the site south ends in an error that names it."""
    original = MemoryConnection.call
    contract = contract or contract_of(as_dataset(np.vstack(list(data.values()))))
    MemoryConnection.call = lying  # type: ignore[method-assign]
    try:
        with InProcessSites(data, policy=Policy(), contract=contract, wait=10) as sites:
            run(sites)
    except DfactError as error:
        return Outcome(int("south" not in str(error)), 1, str(error))
    except (MemoryError, ValueError, OverflowError, FloatingPointError, np.linalg.LinAlgError) as error:
        return Outcome(1, 1, f"{type(error).__name__}")
    finally:
        MemoryConnection.call = original  # type: ignore[method-assign]
    return Outcome(1, 1, "not refused")
