"""Saved models: one Zarr group with arrays as arrays and all else as JSON, and a digest over every byte; no pickle.

A saved model holds what scikit-learn's conventions make a model: its parameters, and the fitted
attributes, whose names end with an underscore.
"""

import hashlib
import json
import math
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import zarr
from numpy.typing import NDArray

from dfact.catalogue import BY_NAME, KIND, MISSING
from dfact.data.codebook import Codebook
from dfact.data.layout import Layout
from dfact.errors import DataError, ParameterError, StoreError
from dfact.extensions import extensions, load_extension
from dfact.models.estimator import MODELS, SAVED_TYPES, Factorization
from dfact.models.fitted_schema import check_fitted
from dfact.models.provenance import Comparison, SelectionRecord, SitesRecord, Stability, TensorStability
from dfact.models.row_factors import StoredRows
from dfact.models.scikit_learn import check_is_fitted
from dfact.parameters import is_count
from dfact.storage.arrays import WRITE_EMPTY_CHUNKS, compressor, member
from dfact.storage.groups import (
    attributes,
    changing,
    create_group,
    exists,
    is_current,
    open_group,
    open_store,
    stored_attributes,
    update_attributes,
)
from dfact.storage.location import Location, absolute, parse_location
from dfact.storage.replacement import reason
from dfact.storage.seals import json_digest
from dfact.storage.zarr_stores import location_of

_NOT_SAVED = ("executor", "callbacks", "checkpoint", "checkpoint_every")  # they belong to the process that fitted the model
_PACKAGES = ("dfact", "dask", "numba", "numpy", "pandas", "scikit-learn", "scipy", "zarr")
ANNOTATIONS = {"selection_": SelectionRecord, "stability_": Stability | TensorStability, "comparison_": Comparison, "sites_": SitesRecord}
"""Attributes that any model may have besides its fitted ones."""
_ADDED = {*ANNOTATIONS, "memberships_se_"}
"""Attributes that :func:`annotate_model` adds."""


def save_model(model: Factorization, path: str | PathLike[str], *, overwrite: bool = False) -> None:
    """Write a fitted model to ``path``, a folder (usually ``*.model``) or a URL such as ``s3://bucket/a.model``.

    The model is complete or absent there, and one that it replaces stays until then. A model that :func:`load_model` has read from
    ``path`` replaces what it has read, such as after ``partial_fit``, and nothing that another process has written since.

    The executor and the callbacks are not saved, nor is a ``random_state`` that is a generator:
    a loaded model has their defaults. A model fitted on stored data has its factors in a Zarr
    array, which is copied by chunks.

    Parameters
    ----------
    model : estimator
        A fitted model.
    path : path or URL
        Where the model is written.
    overwrite : bool
        Whether an existing model is replaced.

    Raises
    ------
    StoreError
        ``path`` exists (unless ``overwrite``), has been changed since the model was read from it, or cannot be written; no partial
        model remains.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> dfact.save_model(dfact.ICQF(n_components=3).fit(answers), "three.model")
    """
    check_is_fitted(model)
    location = absolute(parse_location(path))

    def check() -> None:
        read = _read_from(model, location)
        if read is not None and exists(location) and stored_attributes(location).get("digest") != read.digest:
            raise _changed_since_read(location)

    with create_group(path, KIND, overwrite=overwrite, check=check) as group:
        document = write_model(group, model)
    if _read_from(model, location) is not None:
        _note_read(model, location, document)
        _follow_rows(model, location)


@dataclass(frozen=True)
class _Read:
    """A location from which a model was read, and the digests of its document with annotations and without them."""

    location: Location
    digest: str
    fit: str


def _note_read(model: Factorization, location: Location, document: dict[str, Any]) -> None:
    vars(model)["_read_from"] = _Read(location, json_digest(document), _fit_digest(document))


def _read_from(model: Factorization, location: Location) -> _Read | None:
    read: _Read | None = getattr(model, "_read_from", None)
    return read if read is not None and read.location == location else None


def _fit_digest(document: dict[str, Any]) -> str:
    """Return the digest of a model without what may be added to it later."""
    fitted = {name: value for name, value in document["fitted"].items() if name not in _ADDED}
    return json_digest({**document, "fitted": fitted})


def _changed_since_read(location: Location) -> StoreError:
    return StoreError(
        f"{location} has been changed by another writer since this model was read from it, expected the model that was read; nothing was "
        "written: load it again and repeat the change, or choose another path"
    )


def _follow_rows(model: Factorization, location: Location) -> None:
    """Let row factors and labels that lie in an earlier version of a store, which has been deleted, lie in the present one."""
    group = open_group(location, KIND)
    for name, value in vars(model).items():
        if isinstance(value, zarr.Array) and f"{location_of(value.store)}".startswith(f"{location}/"):
            array: Any = member(group, name)
            setattr(model, name, StoredRows(array.async_array) if isinstance(value, StoredRows) else array)


def annotate_model(path: str | PathLike[str], model: Factorization, *names: str) -> None:
    """Add attributes of ``model``, such as ``stability_``, to the saved model at ``path``, or replace them there.

    Nothing else is written again. A process that is killed leaves the model with the earlier attributes or the new ones.

    Raises
    ------
    StoreError
        There is no model at ``path``, or another one than that from which ``model`` was read, or it cannot be written.
    """
    location = absolute(parse_location(path))
    _require_fit(model, location, _open(location)[1])
    check_fitted(model, ANNOTATIONS)
    try:
        with changing(location) as (place, replace_metadata):
            _, document = _open(location)
            _require_fit(model, location, document)
            before = _array_names(document)
            group = zarr.open_group(open_store(place), mode="r+", zarr_format=3, use_consolidated=False)
            if isinstance(place, Path):
                _remove_arrays(group, set(group.array_keys()) - before)  # those of an interrupted process
            for name in names:
                used = sorted(group.array_keys())
                free = next(key for key in _array_keys(name, place) if not any(other.startswith(key) for other in used))
                document["fitted"][name] = _encode(group, free, getattr(model, name))
            replace_metadata({**attributes(group), "model": document, "digest": json_digest(document)}, _array_names(document))
            _remove_arrays(group, before - _array_names(document))
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"cannot write {location}: {reason(error)}; the model there has its earlier attributes") from error
    if _read_from(model, location) is not None:
        _note_read(model, location, document)


def _require_fit(model: Factorization, location: Location, document: dict[str, Any]) -> None:
    """Raise StoreError if the document there is that of another fit than the one from which the model was read."""
    read = _read_from(model, location)
    if read is not None and read.fit != _fit_digest(document):
        raise _changed_since_read(location)


def _array_keys(name: str, place: Location) -> Iterator[str]:
    """Yield names for an array; those in an object store are of this process, as others may be adding arrays at the same time."""
    if isinstance(place, Path):
        yield from (name, f"{name}1", f"{name}2")
    else:
        yield f"{name}{uuid4().hex[:8]}"


def _array_names(value: Any) -> set[str]:
    """Return the names of all arrays to which a document refers."""
    if isinstance(value, dict):
        own = {value["array"]} if "array" in value else set()
        return own.union(*map(_array_names, value.values()))
    return set().union(*map(_array_names, value)) if isinstance(value, list) else set()


def _remove_arrays(group: zarr.Group, names: Iterable[str]) -> None:
    for name in names:
        del group[name]


def write_model(group: zarr.Group, model: Factorization) -> dict[str, Any]:
    """Write a fitted model into a group made by ``create_group(path, "model")``; return its document."""
    name = type(model).__name__
    if MODELS.get(name) is not type(model):
        raise ParameterError(f"a {name} cannot be saved; expected one of {', '.join(_names())}")
    check_is_fitted(model)
    parameters = {key: value for key, value in model.get_params(deep=False).items() if key not in _NOT_SAVED}
    if isinstance(parameters.get("random_state"), np.random.RandomState):
        parameters["random_state"] = None
    fitted = {key: value for key, value in vars(model).items() if key.endswith("_") and not key.startswith("_")}
    document = {
        "class": name,
        "versions": running_versions(),
        "parameters": {key: _encode(group, key, value) for key, value in parameters.items()},
        "fitted": {key: _encode(group, key, value) for key, value in fitted.items()},
    }
    check_fitted(model, ANNOTATIONS)
    update_attributes(group, model=document, digest=json_digest(document))
    return document


def record_fit(group: zarr.Group, identity: Mapping[str, str]) -> None:
    """Record in the group of a model which fit it is the result of."""
    update_attributes(group, fit=json_digest(dict(identity)))


def is_result_of(path: str | PathLike[str], identity: Mapping[str, str]) -> bool:
    """Check whether there is a complete model at ``path`` that is recorded as the result of this fit."""
    location = parse_location(path)
    if not is_current(location, KIND):
        return False
    return bool(attributes(open_group(location, KIND)).get("fit") == json_digest(dict(identity)))


def load_model(path: str | PathLike[str]) -> Any:
    """Read a model that :func:`save_model` wrote. Its ``transform`` gives results bit-identical to those before.

    Every array is read once and compared with its digest. Row factors and labels that were a Zarr
    array when the model was saved stay one; ``np.asarray`` reads them.

    Parameters
    ----------
    path : path or URL
        Store of the model, such as ``traits.model``.

    Returns
    -------
    estimator
        The fitted model, of the class that was saved. A type checker cannot know which, so name it:
        ``model: dfact.ICQF = dfact.load_model(path)``.

    Raises
    ------
    StoreError
        There is no model at ``path``, or it is incomplete, damaged, or of another format version.

    Examples
    --------
    >>> import dfact, numpy as np
    >>> answers = np.random.default_rng(0).integers(0, 4, (200, 12)).astype(np.float32)
    >>> model = dfact.ICQF(n_components=3).fit(answers)
    >>> dfact.save_model(model, "three.model")
    >>> np.array_equal(dfact.load_model("three.model").transform(answers), model.transform(answers))
    True
    """
    group, document = _open(path)
    writer = f"it was written by dfact {document['versions'].get('dfact')}"
    name = document["class"]
    if name in BY_NAME:
        BY_NAME[name].load()
    elif name not in MODELS and name in (others := extensions("dfact.estimators")):
        load_extension(others[name])
    if name not in MODELS:
        absent = (each.missing(name) for each in MISSING if any(name == entry.name for entry in each.models))
        remedy = next(absent, "install the package of the model, or import it first")
        raise StoreError(f"{path} holds a model of class {name}, expected one of {', '.join(_names())}; {remedy}; {writer}")
    try:
        json.dumps(document, ensure_ascii=False).encode()  # JSON may hold lone surrogates, which cannot be encoded
        parameters = {key: _decode(group, value) for key, value in document["parameters"].items() if key not in _NOT_SAVED}
        model = MODELS[name](**parameters)
        for key, value in document["fitted"].items():
            if not key.isidentifier() or not key.endswith("_") or key.startswith("_"):
                raise KeyError(key)
            setattr(model, key, _decode(group, value))
        texts: Any = model.codebook_
        model.codebook_ = None if texts is None else Codebook.from_texts(texts, model.column_labels_)
        _check(model)
    except (StoreError, MemoryError):
        raise
    except Exception as error:  # a document with a valid digest may still hold anything
        raise StoreError(f"{path} does not fit this dfact ({error or type(error).__name__}); {writer}") from error
    _note_read(model, absolute(parse_location(path)), document)
    return model


def _names() -> list[str]:
    """Return the names of the classes of models that can be saved and loaded."""
    return sorted({*BY_NAME, *MODELS, *extensions("dfact.estimators")})


def _check(model: Factorization) -> None:
    """Refuse a loaded model that could not be used."""
    limit, dtype = model.memory_limit, model.dtype
    if not (limit is None or isinstance(limit, str) or is_count(limit)) or not (dtype is None or dtype in ("float32", "float64")):
        raise DataError(f"memory_limit is {limit!r} and dtype {dtype!r}, expected bytes or None, and 'float32', 'float64' or None")
    check_fitted(model, ANNOTATIONS)
    model._check_loaded()
    stability: Stability | TensorStability | None = getattr(model, "stability_", None)
    if isinstance(stability, TensorStability) != model.traits.tensor and stability is not None:
        raise DataError(f"stability_ is a {type(stability).__name__}, expected that of a {'tensor' if model.traits.tensor else 'matrix'}")
    if isinstance(stability, TensorStability) and stability.estimate.shape[1] != sum(model.slice_shape_):
        raise DataError(f"stability_ has {stability.estimate.shape[1]} entries, expected {sum(model.slice_shape_)}")
    if isinstance(stability, Stability):
        effects = getattr(model, "confounder_effects_", None)
        expected = None if effects is None else effects.shape[1]
        parts = (stability.confounder_mean, stability.confounder_low, stability.confounder_high)
        sizes = [None if part is None else len(part) for part in parts]
        if sizes not in ([None] * 3, [expected] * 3):
            raise DataError(f"stability_ has {sizes} effects of confounders, expected those of the model, {expected}, or none")


def running_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages in this process."""
    return {"python": platform.python_version(), **_package_versions()}


@cache
def _package_versions() -> dict[str, str]:
    """Return the versions of the packages, for which their metadata are read: a quarter of the time to save a small model."""
    return {package: version(package) for package in _PACKAGES}


def saved_versions(path: str | PathLike[str]) -> dict[str, str]:
    """Return the versions of Python and of the packages that wrote the model at ``path``."""
    return dict(_open(path)[1]["versions"])


def _open(path: str | PathLike[str]) -> tuple[zarr.Group, dict[str, Any]]:
    group = open_group(absolute(parse_location(path)), KIND)
    stored = attributes(group)
    document = stored.get("model")
    if not isinstance(document, dict) or stored.get("digest") != json_digest(document):
        raise StoreError(f"{path} is damaged: its attributes do not match their digest; save the model again")
    parts = [document.get(name) for name in ("versions", "parameters", "fitted")]
    versions = parts[0].values() if isinstance(parts[0], dict) else ()
    if (
        not all(isinstance(part, dict) for part in parts)
        or not all(isinstance(item, str) for item in versions)
        or not isinstance(document.get("class"), str)
    ):
        raise StoreError(f"{path} is damaged: class, versions or attributes of the model are missing; save the model again")
    return group, document


def _encode(group: zarr.Group, name: str, value: Any) -> Any:
    """Encode the value as JSON. Types that JSON lacks become an object with a key that names them; arrays are written as ``name``."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (np.ndarray, zarr.Array)):
        return {"array": name, "lazy": isinstance(value, zarr.Array), "digest": write_array(group, name, value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        return np.dtype(value).name
    if isinstance(value, (list, tuple)):
        items = [_encode(group, f"{name}_{i}", item) for i, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Codebook):
        return _encode(group, name, value.to_texts())
    if SAVED_TYPES.get(type(value).__name__) is type(value) and is_dataclass(value):
        return {"part": type(value).__name__, **{f.name: _encode(group, f"{name}_{f.name}", getattr(value, f.name)) for f in fields(value)}}
    raise ParameterError(f"{name} of the model is a {type(value).__name__}, which cannot be saved; expected numbers, text, arrays or None")


def _decode(group: zarr.Group, value: Any) -> Any:
    """Decode a value that :func:`_encode` encoded."""
    if isinstance(value, list):
        return [_decode(group, item) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return read_array(group, value["array"], value["digest"], lazy=value["lazy"])
    if "float" in value:
        return float(value["float"])
    if "tuple" in value:
        return tuple(_decode(group, item) for item in value["tuple"])
    kind = SAVED_TYPES[value["part"]]
    values = {key: _decode(group, item) for key, item in value.items() if key != "part"}
    upgrade = getattr(kind, "upgrade", None)  # of a type whose fields have changed: from the fields of any version to its own
    return kind(**(values if upgrade is None else upgrade(values)))


_LABEL_ROWS = 1 << 16


def write_array(group: zarr.Group, name: str, values: NDArray[Any] | zarr.Array[Any]) -> str:
    """Copy an array of numbers or labels by chunks of rows. Return its digest."""
    labels = values.dtype.kind not in "iufb"
    rows = max(1, min(values.shape[0], _LABEL_ROWS if labels else Layout.of(values.shape).chunk_rows))
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=(rows, *_whole_rows(values.shape)),
        dtype="string" if labels else values.dtype,
        compressors="auto" if labels else compressor(values.dtype),
        config=WRITE_EMPTY_CHUNKS,
    )
    digest = _Digest(values.shape, labels, values.dtype)
    for start in range(0, values.shape[0], rows):
        part = np.asarray(values[start : start + rows], dtype=object if labels else None)
        if part.size:
            array[start : start + rows] = part
        digest.update(part)
    return digest.value


def _whole_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a chunk of whole rows, except for their number."""
    return tuple(max(1, size) for size in shape[1:])


def read_array(group: zarr.Group, name: str, expected: str, *, lazy: bool) -> Any:
    """Read an array by chunks and compare it with its digest. Return the Zarr array itself if ``lazy``."""
    damaged = f"array {name!r} of {group.store_path} is damaged; save the model again"
    try:
        array = member(group, name)
        assert isinstance(array, zarr.Array), "not an array"
        # A forged shape may claim millions of chunks, which Zarr would all look for.
        assert array.chunks[1:] == _whole_rows(array.shape), f"chunks of {array.chunks}, expected whole rows of {array.shape}"
        labels = array.dtype.kind not in "iufb"
        values = None if lazy else np.empty(array.shape, object if labels else array.dtype)
        digest = _Digest(array.shape, labels, array.dtype)
        rows = array.chunks[0]
        for start in range(0, array.shape[0], rows):
            part = np.asarray(array[start : start + rows], dtype=object if labels else None)
            digest.update(part)
            if values is not None:
                values[start : start + rows] = part
    except Exception as error:  # damaged metadata and bytes make Zarr and its codecs raise errors of every kind
        raise StoreError(f"{damaged} ({error})") from error
    if digest.value != expected:
        raise StoreError(damaged)
    if values is not None:
        return values
    return array if labels else StoredRows(array.async_array)


class _Digest:
    """Digest of an array: BLAKE2b over type, shape and values in row order, independent of the chunks."""

    def __init__(self, shape: tuple[int, ...], labels: bool, dtype: Any) -> None:
        self._labels = labels
        self._hash = hashlib.blake2b(f"{'text' if labels else dtype.str} {shape}".encode(), digest_size=16)

    def update(self, part: NDArray[Any]) -> None:
        if self._labels:
            self._hash.update("".join(f"{label}\0" for label in part.ravel()).encode())
        else:
            self._hash.update(np.ascontiguousarray(part).data)

    @property
    def value(self) -> str:
        return self._hash.hexdigest()
