"""scikit-learn's interface of estimators, implemented so that scikit-learn is imported only where it is needed.

Importing scikit-learn takes half a second, most of it for ``scipy.stats``, and a fit needs nothing of it. What a fit needs of the
interface is defined here; the rest comes from scikit-learn's own classes on first use: routing of metadata, representations, tags,
output as data frames.

Parameters that scikit-learn's PCA and NMF have and dfact's do not are accepted where they change nothing, else refused with what to do. The
guide ``from-scikit-learn`` lists all of them, and a test compares the list with scikit-learn's signatures.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, wraps
from inspect import signature
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.data.lazy_results import is_cluster
from dfact.data.memory_limit import free_memory
from dfact.data.sources.array import frame_values
from dfact.errors import ParameterError, StoreError
from dfact.lazy import is_data_frame
from dfact.models.docstrings import document_methods
from dfact.storage.files import is_temporary
from dfact.storage.zarr_stores import location_of

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Foreign:
    """A parameter of scikit-learn's."""

    remedy: str
    """Instruction for other values, which follows a semicolon."""
    same: tuple[Any, ...] | None = None
    """Values that change nothing here; None for all."""

    def refuse(self, owner: str, name: str, value: Any) -> None:
        """Raise ParameterError unless the value changes nothing."""
        if self.same is None or any(value is each or (type(value) is type(each) and value == each) for each in self.same):
            return
        raise ParameterError(f"{name} is {value!r}, a parameter of scikit-learn's {owner} that dfact's has not; {self.remedy}")


_SOLVER = "leave it out: the number of columns decides, and the components are those of the full solver up to the accuracy of the data"
OF_PCA = {
    "copy": Foreign("leave it out: data are never changed"),
    "random_state": Foreign("leave it out: a fit draws nothing that changes its result"),
    "svd_solver": Foreign(_SOLVER, ("auto", "full", "covariance_eigh")),
    "iterated_power": Foreign(_SOLVER, ("auto",)),
    "n_oversamples": Foreign(_SOLVER, (10,)),
    "power_iteration_normalizer": Foreign(_SOLVER, ("auto",)),
}
OF_NMF = {
    "beta_loss": Foreign("pass loss='frobenius' or loss='kullback-leibler'; there are no other losses", ("frobenius", 2)),
    "solver": Foreign("leave it out: the loss decides, and the objective is the same", ("cd",)),
    "shuffle": Foreign("leave it out: coordinates are updated in their order", (False,)),
    "verbose": Foreign("pass callbacks=[dfact.Progress('fit')]", (0, False)),
}


def without_foreign(owner: str, foreign: Mapping[str, Foreign], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given parameters without those of scikit-learn alone that change nothing.

    Raises
    ------
    ParameterError
        A parameter of scikit-learn alone has a value that dfact does not have.
    """
    for name in foreign.keys() & given.keys():
        foreign[name].refuse(owner, name, given[name])
    return {name: value for name, value in given.items() if name not in foreign}


def accept_foreign(init: F, owner: str, foreign: Mapping[str, Foreign]) -> F:
    """Let an ``__init__`` accept the parameters of scikit-learn that change nothing, and refuse the others by name."""

    @wraps(init)
    def accepting(self: Any, *args: Any, **keywords: Any) -> None:
        init(self, *args, **without_foreign(owner, foreign, keywords))

    return cast("F", accepting)


_NOT_ROUTED = ("checkpoint", "out", "W", "factors", "memberships", "scores")
"""Arguments of methods that do not describe rows: locations, and other names of X."""
_FROM_SCIKIT_LEARN = ("_get_metadata_request", "get_metadata_routing")


def check_is_fitted(model: Any) -> None:
    """Raise scikit-learn's NotFittedError if the model has no fitted attribute."""
    if not any(name.endswith("_") and not name.startswith("__") for name in vars(model)):
        from sklearn.exceptions import NotFittedError

        found = f"This {type(model).__name__} instance is not fitted yet"
        raise NotFittedError(f"{found}. Call 'fit' with appropriate arguments before using this estimator.")


def component_labels(count: int, word: str = "F") -> list[str]:
    """Return the labels of components, numbered from 1: F1, F2, …, or with another word than F. All tables and plots have them."""
    return [f"{word}{number}" for number in range(1, count + 1)]


def set_feature_count(model: Any, count: int) -> None:
    """Set ``n_features_in_`` of a model that is fitted to data without feature names."""
    model.n_features_in_ = count
    vars(model).pop("feature_names_in_", None)


def checked_array(model: Any, X: Any, *, reset: bool, tensor: bool) -> Any:
    """Return X as an array of numbers or a CSR matrix; set or check the number and names of its features as scikit-learn does."""
    if type(X) is np.ndarray and X.dtype.kind in "fiub" and X.size and (X.ndim == 2 or (tensor and X.ndim > 2)):
        if reset:
            set_feature_count(model, X.shape[1])
        if not hasattr(model, "feature_names_in_") and X.shape[1] == getattr(model, "n_features_in_", None):
            return X
    from sklearn.utils.validation import check_array, validate_data

    if is_data_frame(X):
        validate_data(model, X, reset=reset, skip_check_array=True)
        return check_array(frame_values(X), dtype="numeric", ensure_all_finite="allow-nan")
    return validate_data(model, X, reset=reset, dtype="numeric", accept_sparse="csr", ensure_all_finite="allow-nan", allow_nd=tensor)


class TransformerInterface:
    """The interface of scikit-learn's BaseEstimator, TransformerMixin and ClassNamePrefixFeaturesOutMixin."""

    _sklearn_auto_wrap_output_keys = frozenset({"transform"})  # scikit-learn's sign that set_output works
    foreign: ClassVar[Mapping[str, Foreign]] = {}
    """Parameters of scikit-learn's class of the same name that this one does not have."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name in ("transform", "fit_transform"):
            if name in vars(cls):
                setattr(cls, name, _with_container(vars(cls)[name]))
        if "foreign" in vars(cls):
            cls.__init__ = accept_foreign(cls.__init__, cls.__name__, cls.foreign)  # type: ignore[method-assign]  # the same signature
        document_methods(cls)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name.

        Parameters
        ----------
        deep : bool
            No parameter is an estimator, so it changes nothing.

        Returns
        -------
        dict
            Values by the names of the parameters.
        """
        return {name: getattr(self, name) for name in sorted(signature(type(self)).parameters)}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name.

        Returns
        -------
        self
            The model.

        Raises
        ------
        ValueError
            The model has no parameter of a name.
        """
        known = self.get_params()
        for name, value in without_foreign(type(self).__name__, self.foreign, params).items():
            if name not in known:
                raise ValueError(f"Invalid parameter {name!r} for estimator {self}. Valid parameters are: {sorted(known)!r}.")
            setattr(self, name, value)
        return self

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the labels of the components: F1, F2, ….

        Parameters
        ----------
        input_features : array (m,), optional
            Names of the columns, which are checked and have no other effect.

        Returns
        -------
        array (k,) of str
            One name for each component.
        """
        check_is_fitted(self)
        if input_features is not None:
            from sklearn.base import ClassNamePrefixFeaturesOutMixin

            ClassNamePrefixFeaturesOutMixin.get_feature_names_out(self, input_features)  # raises ValueError for other features
        return np.asarray(component_labels(self._n_features_out), dtype=object)

    @property
    def _n_features_out(self) -> int:
        raise NotImplementedError  # each model's own

    def __getstate__(self) -> dict[str, Any]:
        return picklable_state(self)

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(vars(self))
        return copied

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy for ``sklearn.base.clone``; a Dask client is shared, as it cannot be copied."""
        from sklearn.base import clone

        shared = [name for name, value in self.get_params(deep=False).items() if name == "executor" and is_client(value)]
        copied = type(self)(
            **{name: value if name in shared else clone(value, safe=False) for name, value in self.get_params(deep=False).items()}
        )
        for name in ("_metadata_request", "_sklearn_output_config"):
            if name in vars(self):
                setattr(copied, name, deepcopy(vars(self)[name]))
        return copied

    def set_output(self, *, transform: str | None = None) -> Self:
        """Set the container that ``transform`` returns.

        Parameters
        ----------
        transform : "default", "pandas", "polars" or None
            Kind of the container; None changes nothing.

        Returns
        -------
        self
            The model.
        """
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}  # clones keep it by this name
        return self

    def __sklearn_tags__(self) -> Any:
        return _base_class()().__sklearn_tags__()

    def __repr__(self) -> str:
        from sklearn.base import BaseEstimator

        return cast("str", BaseEstimator.__repr__(self._as_base_estimator()))

    def _repr_html_(self) -> str:
        """Return scikit-learn's diagram, and below it what a fit has found."""
        from sklearn.utils import estimator_html_repr

        with warnings.catch_warnings():  # scikit-learn reads all attributes, old names too
            warnings.simplefilter("ignore", DeprecationWarning)
            diagram = str(estimator_html_repr(self._as_base_estimator()))
        return diagram + self._fitted_html() if hasattr(self, "n_features_in_") else diagram

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """Return the model for a notebook, which prefers this to ``_repr_html_``."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def _fitted_html(self) -> str:
        """Return the HTML that describes the fitted model."""
        return ""

    def __getattr__(self, name: str) -> Any:
        if name in _FROM_SCIKIT_LEARN or (name.startswith("set_") and name.endswith("_request")):
            return getattr(self._as_base_estimator(), name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _as_base_estimator(self) -> Any:
        """Return a view of the model, with the same attributes, whose class inherits from scikit-learn's classes, too."""
        kind: Any = type(self)
        view = object.__new__(_estimator_class(kind))
        view.__dict__ = self.__dict__
        return view


def _with_container(method: F) -> F:
    """Make a method return the container that ``set_output`` or scikit-learn's configuration asks for."""

    @wraps(method)
    def transformed(self: Any, X: Any, *args: Any, **options: Any) -> Any:
        result = method(self, X, *args, **options)
        if "sklearn" not in sys.modules and "_sklearn_output_config" not in vars(self):
            return result
        if isinstance(result, zarr.Array) and _wants_frame(self):
            result = np.asarray(result)
        from sklearn.utils._set_output import _wrap_data_with_container

        return _wrap_data_with_container("transform", result, X, self)

    return cast("F", transformed)


def _wants_frame(model: Any) -> bool:
    """Return whether ``set_output`` or scikit-learn's configuration asks for a data frame."""
    from sklearn import get_config

    chosen = vars(model).get("_sklearn_output_config", {}).get("transform", get_config()["transform_output"])
    return bool(chosen != "default")


@cache
def _base_class() -> Any:
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

    return type("Transformer", (ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator), {})


@cache
def _estimator_class(kind: Any) -> Any:
    """Return a class of the same name that inherits from ``kind`` and scikit-learn's classes."""
    from sklearn.utils.metadata_routing import UNUSED

    settings: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__}
    for name in ("fit", "transform", "inverse_transform"):  # the attributes by which scikit-learn leaves arguments out of its routing
        arguments = signature(getattr(kind, name)).parameters
        settings[f"__metadata_request__{name}"] = {argument: UNUSED for argument in arguments if argument in _NOT_ROUTED}
    return type(kind.__name__, (kind, _base_class()), settings, registered=False)


def picklable_state(model: Any) -> dict[str, Any]:
    """Return the attributes of a model for another process, or for a deep copy.

    A Dask client or cluster becomes the address of its scheduler; None if it is closed, or within this process. Arrays in a temporary
    folder, which goes with this process or with the model, become arrays in memory.

    Raises
    ------
    StoreError
        These arrays need more than half of the free memory.
    """
    state = dict(vars(model))
    if is_client(executor := state.get("executor")):
        state["executor"] = client_address(executor)
    temporary = {name: value for name, value in state.items() if isinstance(value, zarr.Array) and is_temporary(location_of(value.store))}
    size, free = sum(value.nbytes for value in temporary.values()), free_memory()
    if temporary and size > free.size / 2:
        raise StoreError(
            f"{', '.join(temporary)} of the model lie in a temporary folder and have {size / 2**30:.1f} GiB, expected at most half of the "
            f"{free} to pickle or copy them; save the model instead: dfact.save_model(model, path)"
        )
    return state | {name: np.asarray(value) for name, value in temporary.items()}


def is_client(executor: Any) -> bool:
    """Return whether an executor is a Dask client or cluster, without importing Dask."""
    return is_cluster(executor) or hasattr(executor, "scheduler_info")


def client_address(client: Any) -> str | None:
    """Return the address of the scheduler of a Dask client or cluster; None if it is closed, or no other process can reach it."""
    if is_cluster(client):
        address = client.scheduler_address if client.status.name == "running" else ""
    else:
        address = "" if client.scheduler is None else str(client.scheduler.address)
    return None if address.startswith("inproc://") or "://" not in address else address
