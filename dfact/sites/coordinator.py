"""The coordinator: it waits for the sites, tells them what to fit, and fits the same without rows."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np

from dfact.engine.environment import as_fields, current_environment, version_mismatch
from dfact.errors import DfactError, FederationError
from dfact.models.estimator import Factorization
from dfact.models.provenance import SitesRecord
from dfact.sites.description import Description, PooledDataset, pool
from dfact.sites.exchange import Exchange
from dfact.sites.messages import Message
from dfact.sites.resources import Resources
from dfact.sites.sessions import CoordinatorExecutor
from dfact.sites.tasks import Task


class Hub:
    """The coordinator's end of all connections: it answers the messages of the sites. Thread-safe.

    A transport calls :meth:`answer` with the name that a site has proved, and a message of it.
    """

    def __init__(self, sites: Sequence[str], *, wait: float, contract: Description | None) -> None:
        if len(set(sites)) != len(sites) or not sites:
            raise FederationError(f"the sites are {list(sites)}, expected at least one name, each once")
        self.sites, self.wait, self._contract = tuple(sorted(sites)), wait, contract
        self._changed = threading.Condition()
        self._joined: dict[str, Description] = {}
        self._resources: dict[str, Resources] = {}
        self._ready: set[str] = set()
        """Sites that have asked for a task since they joined: they have checked the contract."""
        self._refusals: dict[str, str] = {}
        """Words of the sites that do not join."""
        self._run = ""
        """Name of the current run, drawn at random: a restarted coordinator begins others."""
        self._offer: Message | None = None
        """The current run, until it has ended."""
        self.exchange: Exchange | None = None
        self._ended: dict[str, Message] = {}
        self._completed: list[str] = []
        """Names of the runs that have ended with the same result everywhere."""
        self._closed = False

    def answer(self, site: str, message: Message, alive: Callable[[], bool] = lambda: True) -> Message:
        """Answer a message of a site; raise FederationError with what is wrong with it.

        ``alive`` tells whether the site still waits for the answer.
        """
        if site not in self.sites:
            raise FederationError(f"site {site!r} is not one of {', '.join(self.sites)}")
        kind = message.get("kind", str)
        if kind == "contract":
            return Message({"kind": "contract"}) if self._contract is None else self._contract.message("contract")
        if kind == "join":
            return self._join(site, message)
        if kind == "task":
            return self._task(site, message.get("after", str), alive)
        if kind == "alive":
            if self.exchange is not None:
                self.exchange.saw(site)
            return Message({"kind": "alive"})
        if kind == "refused":
            with self._changed:
                self._refusals[site] = message.words("text")
                self._ready.discard(site)
                self._changed.notify_all()
            return Message({"kind": "refused"})
        exchange = self.exchange
        if exchange is None or message.get("run", str) != self._run:
            return UNKNOWN_RUN
        if kind == "failed":
            exchange.fail(f"site {site}: {message.words('text')}")
            return Message({"kind": "failed"})
        if kind == "ended":
            with self._changed:
                self._ended[site] = message
                self._changed.notify_all()
            return Message({"kind": "ended"})
        if kind == "step":
            inner = message.get("message", dict)
            return exchange.contribute(site, message.get("step", int), Message(inner, message.arrays), alive)
        raise FederationError(f"a message is of the kind {kind[:40]!r}, expected one of this version of dfact")

    def _join(self, site: str, message: Message) -> Message:
        found = message.get("environment", dict)
        mismatch = version_mismatch(found, as_fields(current_environment()))
        if mismatch is not None:
            raise FederationError(f"site {site} has other versions: {mismatch}; install the same ones")
        description = Description.from_message(Message(message.get("description", dict), message.arrays))
        if [name for name, _ in description.sites] != [site]:
            raise FederationError(f"site {site} describes data of {[name for name, _ in description.sites]}")
        resources = Resources.from_message(message)
        with self._changed:
            before = self._joined.get(site)
            if before is not None and before.fingerprint != description.fingerprint:
                raise FederationError(f"site {site} had other data when it first joined; restore it, or restart the coordinator")
            self._joined[site] = description
            self._ready.discard(site)
            self._refusals.pop(site, None)
            self._resources[site] = resources
            self._changed.notify_all()
        return Message({"kind": "joined"})

    def _task(self, site: str, after: str, alive: Callable[[], bool]) -> Message:
        """Wait for another run than ``after``, and return it."""
        with self._changed:
            if site not in self._joined:  # it had joined a coordinator that was restarted
                return UNKNOWN_RUN
            self._ready.add(site)
            self._changed.notify_all()
            until = time.monotonic() + _POLL
            while not self._closed and (self._offer is None or self._run == after):
                rest = until - time.monotonic()
                if rest <= 0 or not alive():
                    return Message({"kind": "wait"})
                self._changed.wait(min(rest, 1.0))
            if self._offer is None or self._run == after:
                missed = self._run not in ("", after, *self._completed)
                failure = self.exchange.failure if missed and self.exchange is not None else None
                return Message({"kind": "closed", "completed": self._completed, "failure": failure or ""})
            return self._offer

    def wait_for_sites(self, on_change: Callable[[Sequence[str]], None] = lambda _: None) -> Description:
        """Wait until all sites have joined, and return the description of all data."""
        until, told = time.monotonic() + self.wait, -1
        with self._changed:
            while len(self._ready) < len(self.sites):
                missing = [site for site in self.sites if site not in self._ready]
                if len(missing) != told:
                    told = len(missing)
                    on_change(missing)
                if self._refusals:
                    site, text = next(iter(self._refusals.items()))
                    raise FederationError(f"site {site} does not join: {text}")
                if time.monotonic() > until:
                    raise FederationError(f"{', '.join(missing)} did not join within {self.wait:g} s (--wait)")
                self._changed.wait(0.5)
            joined = dict(self._joined)
        contract = self._contract or joined[self.sites[0]]
        for site in self.sites:
            difference = contract.difference(joined[site].columns_alone())
            if difference is not None:
                raise FederationError(f"site {site} differs from the contract: {difference}")
        return pool(list(joined.values()), self._contract)

    def begin(self, task: Task, pooled: Description) -> Exchange:
        """Offer a run to all sites, and return its exchange."""
        with self._changed:
            self._run = secrets.token_hex(8)
            if self.exchange is not None:
                self.exchange.close()
            self.exchange = Exchange(self.sites, self.wait)
            self._ended = {}
            message = pooled.message("run")
            fields = {**message.fields, "run": self._run, "task": task.as_json(), **self.resources.as_fields()}
            self._offer = Message(fields, message.arrays)
            self._changed.notify_all()
            return self.exchange

    @property
    def resources(self) -> Resources:
        """The resources with which all can plan."""
        return Resources.common(self._resources.values())

    def end(self, digest: str) -> None:
        """Wait until all sites have ended the run, with the same result."""
        exchange, until = self.exchange, time.monotonic() + self.wait
        assert exchange is not None, "a run has begun"
        with self._changed:
            while len(self._ended) < len(self.sites):
                if exchange.failure is not None:
                    raise FederationError(exchange.failure)
                if time.monotonic() > until:
                    missing = [site for site in self.sites if site not in self._ended]
                    raise FederationError(f"{', '.join(missing)} did not end the run within {self.wait:g} s")
                self._changed.wait(0.5)
        others = [site for site in self.sites if self._ended[site].fields.get("digest") != digest]
        if others:
            text = f"the results of {', '.join(others)} differ from the coordinator's in their bits"
            raise FederationError(f"{text}; their processors or libraries round differently")
        self._completed.append(self._run)

    @property
    def succeeded(self) -> bool:
        """Whether the last run has ended with the same result everywhere."""
        return self._run in self._completed

    def withdraw(self) -> None:
        """Offer the run to no further site."""
        with self._changed:
            self._offer = None

    def close(self) -> None:
        """Tell all sites that there are no more runs."""
        with self._changed:
            self._closed = True
            self._offer = None
            self._changed.notify_all()
        if self.exchange is not None:
            self.exchange.close()


UNKNOWN_RUN = Message({"kind": "unknown run"})
"""The answer to a site that is at another run than the coordinator, which may have been restarted."""
_POLL = 30.0
"""Seconds after which a site that waits for a task asks again."""


def result_digest(result: Any) -> str:
    """Return the digest of what is the same everywhere in a result: all arrays of a model but those of rows, or the tables."""
    digest = hashlib.sha256()
    for name, array in sorted(_shared_arrays(result).items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def record_sites(result: Any, pooled: Description) -> str:
    """Record the sites in the model of a result, if it has one; return the digest of the result."""
    for model in models_of(result):
        names, rows = zip(*pooled.sites, strict=True)
        # Classes of models do not declare annotations.
        vars(model)["sites_"] = SitesRecord(list(names), list(rows), result_digest(model))
    return result_digest(result)


def models_of(result: Any) -> list[Factorization]:
    """Return the model of a fit, or that of a selection; none of a description."""
    return [model for model in (result, getattr(result, "model", None)) if isinstance(model, Factorization)]


def _shared_arrays(result: Any) -> Mapping[str, Any]:
    if isinstance(result, Factorization):
        return {"components": np.ascontiguousarray(result.components_)}
    table = getattr(result, "table", None)
    if table is None:
        table = result.items
    return {
        str(name): np.ascontiguousarray(table[name].to_numpy())
        for name in table.columns
        if name != "seconds" and table[name].dtype.kind in "fiu"
    }


class Run:
    """Fits, selections and descriptions across the sites of a hub."""

    def __init__(self, hub: Hub, on_change: Callable[[Sequence[str]], None] = lambda _: None) -> None:
        self._hub, self._on_change = hub, on_change

    def carry_out(self, task: Task, **runtime: Any) -> Any:
        """Carry out a task with all sites, and return the coordinator's result."""
        pooled = self._hub.wait_for_sites(self._on_change)
        task = task.with_seed(pooled.fingerprint)
        exchange = self._hub.begin(task, pooled)
        try:
            self._hub.resources.require(pooled.table_bytes, pooled.sites)
            data: PooledDataset = pooled.dataset()
            executor = CoordinatorExecutor(exchange, pooled.sites, self._hub.resources.planned())
            result = task.run(data, executor, **runtime)
            self._hub.end(record_sites(result, pooled))
        except DfactError as error:
            exchange.fail(f"the coordinator: {error}")
            raise
        except Exception as error:
            exchange.fail("the coordinator has stopped")
            text = f"the run has failed ({type(error).__name__}: {error})"
            raise FederationError(f"{text}; the sums of the sites may not be those of the model") from error
        except BaseException:
            exchange.fail("the coordinator has stopped")
            raise
        finally:
            self._hub.withdraw()
        return result


def _given(**arguments: Any) -> dict[str, Any]:
    """Return the arguments that are not None."""
    return {name: value for name, value in arguments.items() if value is not None}


class SitesBase:
    """Fits across sites: the same for all ways to connect them."""

    _hub: Hub
    _run: Run

    def fit(
        self,
        model: Factorization,
        *,
        weights: bool | None = None,
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_every: int = 1,
    ) -> Any:
        """Fit the model to the rows of all sites. It has no row factors; each site keeps those of its rows.

        Parameters
        ----------
        model : estimator
            ICQF, NMF, FactorAnalysis, PCA, ExpectileMF, ElasticCP, or Admixture with ``init="random"``. Its parameters are numbers and
            texts. Without a seed, the seed follows from the digest of the data.
        weights : bool, optional
            Whether the weights of the rows are used; by default if the data has any and the model takes them.
        checkpoint : path, optional
            Store for the progress, from which the same fit resumes. It stays; delete it once the model is saved.
        checkpoint_every : int
            Number of passes between two checkpoint versions.

        Returns
        -------
        estimator
            The same model, fitted.

        Raises
        ------
        FederationError
            A site refuses, is lost for longer than ``wait``, or has data that differs from the contract.
        """
        runtime: dict[str, Any] = {"callbacks": model.callbacks} if getattr(model, "callbacks", ()) else {}
        if checkpoint is not None:
            runtime |= {"checkpoint": checkpoint, "checkpoint_every": checkpoint_every}
        fitted = self._run.carry_out(Task.of("fit", model, **_given(weights=weights)), **runtime)
        model.__dict__.update({name: value for name, value in vars(fitted).items() if name.endswith("_")})
        return model

    def select(self, model: Factorization, grid: Mapping[str, Any], **arguments: Any) -> Any:
        """Choose parameters by :func:`dfact.selection.block_cross_validate` over the rows of all sites.

        Each site deals its rows to blocks by its key, the same in all repeats and runs.

        Parameters
        ----------
        model : estimator
            ICQF or NMF.
        grid : dict
            Values of the parameters to choose among, by name.
        **arguments
            ``n_blocks``, ``n_folds``, ``n_repeats``, ``rule`` and ``random_state`` of that function, and ``weights`` of
            :meth:`fit`.

        Returns
        -------
        Selection
            The result, whose model has no row factors.

        Raises
        ------
        FederationError
            The same conditions as for ``fit``.
        """
        return self._run.carry_out(
            Task.of("select", model, grid={name: list(values) for name, values in grid.items()}, **_given(**arguments))
        )

    def describe(self, **arguments: Any) -> Any:
        """Describe the items and scales by :func:`dfact.describe` over the rows of all sites.

        Parameters
        ----------
        **arguments
            ``scales`` by name, ``keys``, ``correlation``, ``missing``, ``group_factors`` and ``interval`` of that function. Data with
            weights needs ``weights=False``, as weighted numbers of answers do not tell how many rows are behind them.

        Returns
        -------
        Description
            The description of all rows.

        Raises
        ------
        FederationError
            The same conditions as for ``fit``.
        """
        return self._run.carry_out(Task.of("describe", None, **_given(**arguments)))

    def close(self) -> None:
        """End the connections, and thereby the programs of the sites."""
        self._hub.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
