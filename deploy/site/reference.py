"""Pages of the reference of the Python library, as sources for Sphinx: each public name with its methods and properties."""

import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cached_property
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from sklearn import decomposition

import dfact
from dfact.data.replicate_weights import ReplicateWeights
from dfact.engine.memory_plan import Plan
from dfact.models.cp.path import SolutionPath
from dfact.models.estimator import Factorization
from dfact.models.provenance import Comparison, Stability, TensorStability
from dfact.progress import Iteration

RESULTS = (Plan, Iteration, Stability, TensorStability, Comparison, SolutionPath, ReplicateWeights)
"""Classes of what public functions and attributes return. A user meets them without importing them."""

USED = {"drift", "fit_each", "fit_measurements", "path", "predict", "predict_entries", "reconstruct", "score_samples"}.union(
    *({name for name in dir(each) if not name.startswith("_")} for each in (decomposition.PCA, decomposition.NMF))
)
"""Methods of estimators for those who use them: scikit-learn's, and some of dfact's own. Attributes of fits end with an underscore."""

CITATION = re.compile(r":(?:func|class|mod):`~?(dfact\.[\w.]+)`")
"""A function, class or module that a docstring cites for a rule or a definition."""


def public_modules() -> list[ModuleType]:
    """Return dfact and its public modules."""
    values = [getattr(dfact, name) for name in dfact.__all__]
    return [dfact, *(value for value in values if inspect.ismodule(value))]


def public_names(module: ModuleType) -> dict[str, Any]:
    """Return the public classes, functions and other values of a module by their names."""
    values = {name: getattr(module, name) for name in module.__all__}
    return {name: value for name, value in sorted(values.items(), key=lambda pair: pair[0].lower()) if not inspect.ismodule(value)}


def members(owner: type) -> dict[str, Any]:
    """Return the public methods and properties that dfact defines for a class, in the order of their names."""
    found = {}
    for name in sorted(dir(owner)):
        home = next((base for base in owner.__mro__ if name in vars(base)), object)
        value = inspect.getattr_static(owner, name)
        kinds = (property, cached_property, classmethod, staticmethod)
        if not name.startswith("_") and home.__module__.startswith("dfact.") and (inspect.isfunction(value) or isinstance(value, kinds)):
            found[name] = value
    return found


def is_for_users(owner: type, member: str) -> bool:
    """Return whether a member is for the users of a class, not for a new factorization or a selection alone."""
    return not issubclass(owner, Factorization) or member.endswith("_") or member in USED


def _title(text: str, mark: str) -> list[str]:
    return [text, mark * len(text), ""]


def _directive(kind: str, name: str, *options: str) -> list[str]:
    return [f".. {kind}:: {name}", *(f"   {option}" for option in options), ""]


def class_lines(name: str, owner: type) -> Iterator[str]:
    """Yield the directives of a class: its docstring, the fields of a record, methods and properties for its users."""
    yield from _directive("autoexception" if issubclass(owner, BaseException) else "autoclass", name)
    for attribute in fields(owner) if is_dataclass(owner) else ():
        if not attribute.name.startswith("_"):
            yield from _directive("autoattribute", f"{name}.{attribute.name}", ":no-value:")
    yield from _member_lines(name, {member: value for member, value in members(owner).items() if is_for_users(owner, member)})


def _member_lines(name: str, found: dict[str, Any]) -> Iterator[str]:
    for member, value in found.items():
        kind = "autoproperty" if isinstance(value, property | cached_property) else "automethod"
        yield from _directive(kind, f"{name}.{member}")


def _extension_lines() -> Iterator[str]:
    """Yield the page of what new factorizations and selections use of the estimators."""
    yield from _title("Methods for extensions", "=")
    yield "A fit does not need these. New factorizations and selections call or define them; the guide on"
    yield from (":doc:`extending dfact </dfact/guides/extending>` explains how.", "")
    for name, owner in public_names(dfact).items():
        if inspect.isclass(owner) and issubclass(owner, Factorization):
            yield from _title(f"dfact.{name}", "-")
            yield from _directive("currentmodule", "dfact")
            yield from _member_lines(
                f"dfact.{name}", {member: value for member, value in members(owner).items() if not is_for_users(owner, member)}
            )


def _page(module: ModuleType, name: str, value: Any) -> str:
    path = f"{module.__name__}.{name}"
    lines = [*_title(path, "="), *_directive("currentmodule", module.__name__)]
    lines += class_lines(path, value) if inspect.isclass(value) else _directive("autofunction", path)
    return "\n".join(lines)


def _summary(value: Any) -> str:
    text = (inspect.getdoc(value) or "").partition("\n")[0]
    return re.sub(r":\w+:`~?([^`]+)`", r"``\1``", text)


def _contents(module: ModuleType) -> Iterator[str]:
    yield from _title(module.__name__, "-")
    yield from _directive("py:module", module.__name__)
    yield from (_summary(module), "")
    names = public_names(module)
    for name, value in names.items():
        yield from (f":doc:`{module.__name__}.{name}`", f"   {_summary(value)}", "")
    yield from (".. toctree::", "   :hidden:", "", *(f"   {module.__name__}.{name}" for name in names), "")


def _docstrings(value: Any) -> Iterator[str]:
    """Yield the docstrings of a value, of a class with those of its methods and properties."""
    for each in (value, *(members(value).values() if inspect.isclass(value) else ())):
        yield inspect.getdoc(getattr(each, "__func__", each)) or ""


def _cited(pages: dict[str, str]) -> list[tuple[str, Any]]:
    """Return what docstrings cite and no page has, in the order of the names: directly, or in another cited docstring."""
    pending = [value for module in public_modules() for value in public_names(module).values()] + list(RESULTS)
    known = {*pages, *(module.__name__ for module in public_modules()), *(f"{owner.__module__}.{owner.__qualname__}" for owner in RESULTS)}
    found: dict[str, Any] = {}
    while pending:
        text = "\n".join(_docstrings(pending.pop()))
        for path in set(CITATION.findall(text)) - known:
            known.add(path)
            with suppress(ImportError, AttributeError):  # Sphinx reports it where it is cited
                found[path] = resolve_name(path)
                pending.append(found[path])
    return sorted(found.items())


def reference() -> dict[str, str]:
    """Return the pages of the reference by the names of their files."""
    pages: dict[str, str] = {}
    for module in public_modules():
        pages |= {f"{module.__name__}.{name}": _page(module, name, value) for name, value in public_names(module).items()}
    results = [*_title("Objects that functions return", "="), *_directive("currentmodule", "dfact")]
    for owner in RESULTS:
        results += [*_title(owner.__name__, "-"), *class_lines(f"{owner.__module__}.{owner.__qualname__}", owner)]
    details = [*_title("Details that docstrings cite", "="), "These have no public name. They state rules in more detail.", ""]
    for path, found in _cited(pages):
        if inspect.isclass(found):
            details += class_lines(path, found)
        else:
            details += _directive("automodule" if inspect.ismodule(found) else "autofunction", path)
    index = [*_title("Reference of the Python library", "=")]
    for module in public_modules():
        index += _contents(module)
    index += [*_title("Results", "-"), ":doc:`results`", "   Classes of what functions and attributes return.", ""]
    index += [":doc:`details`", "   Rules and definitions that docstrings cite.", ""]
    index += [":doc:`extensions`", "   Methods of the estimators that new factorizations and selections use.", ""]
    index += [".. toctree::", "   :hidden:", "", "   results", "   details", "   extensions", ""]
    texts = {"results": results, "details": details, "extensions": list(_extension_lines()), "index": index}
    pages |= {name: "\n".join(lines) for name, lines in texts.items()}
    return {f"{name}.rst": text for name, text in pages.items()}
