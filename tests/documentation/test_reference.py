"""The site's reference has every public name, and their docstrings have the sections that their signatures need."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

import dfact
from dfact.catalogue import CATALOGUE
from dfact.text import section_entries
from tests.architecture.layers import LEVELS
from tests.documentation.pages import GUIDES, ROOT, SECTIONS, TEXTS, spans

CONTRIBUTORS = {"architecture", "extending"}
"""Guides that use contracts inside the package."""
SITE = ROOT / "deploy" / "site"


def loaded(name: str) -> ModuleType:
    """Import a module of the site's build, which is not a package."""
    spec = spec_from_file_location(f"site_{name}", SITE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = loaded("reference")
MODULES = [dfact, *(value for name in dfact.__all__ if inspect.ismodule(value := getattr(dfact, name)))]


def public() -> Iterator[tuple[str, Any]]:
    """Yield public classes and functions with their paths."""
    for module in MODULES:
        values = ((f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__)
        yield from ((path, value) for path, value in values if not inspect.ismodule(value))
    yield from ((f"{owner.__module__}.{owner.__qualname__}", owner) for owner in reference.RESULTS)


def methods() -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that dfact defines, with their paths."""
    for path, owner in public():
        for name in dir(owner) if inspect.isclass(owner) else ():
            home = next((base for base in owner.__mro__ if name in vars(base)), object)
            value = inspect.getattr_static(owner, name)
            described = inspect.isfunction(value) or isinstance(value, property | cached_property | classmethod | staticmethod)
            if not name.startswith("_") and home.__module__.startswith("dfact.") and described:
                yield f"{path}.{name}", value


def function_of(value: Any) -> Any:
    """Return the function of a method or a property."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or getattr(value, "func", value)


def test_every_public_name_and_method_is_in_the_reference() -> None:
    text = "\n".join(reference.reference().values())
    listed = set(re.findall(r"(?m)^\.\. auto\w+:: (\S+)$", text))
    assert {path for path, _ in [*public(), *methods()]} - listed == set()


@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_pages_of_models_have_what_users_call(name: str) -> None:
    """Methods for new factorizations and selections have a page of their own."""
    pages = reference.reference()
    users, others = (set(re.findall(rf":: dfact\.{name}\.(\w+)", pages[page])) for page in (f"dfact.{name}.rst", "extensions.rst"))
    assert users >= {"fit", "fit_transform", "get_params", "set_params", "score", "transform"}
    assert others >= {"fit_prepared", "open_session", "prepare", "row_factors", "solve"}
    assert users & others == set()


def lacks(path: str, value: Any) -> Iterator[str]:
    """Yield what the docstring of a function, a method or a property lacks."""
    function = function_of(value)
    docstring = inspect.getdoc(function if function is not value else value) or ""
    if not docstring:
        yield f"{path}: a docstring"
        return
    if not inspect.isfunction(function) or isinstance(value, property | cached_property):
        return
    signature = inspect.signature(function)
    taken = [name for name, each in signature.parameters.items() if name not in {"self", "cls", "y"} and each.kind is not each.VAR_KEYWORD]
    entries = section_entries(docstring, "Parameters")
    for name in re.findall(r"arguments\s+are\s+those\s+of\s+:func:`(\w+)`", docstring):
        entries |= section_entries(inspect.getdoc(inspect.unwrap(function).__globals__[name]) or "", "Parameters")
        entries |= dict.fromkeys(re.findall(r"``(\w+)``", docstring), "named in the text")
    documented = {name for names in entries for name in names.split(", ")}
    yield from (f"{path}: the parameter {name}" for name in taken if name not in documented)
    if (
        "return" in function.__annotations__
        and str(function.__annotations__["return"]) != "None"
        and not re.search(r"(?m)^(Returns|Yields)$", docstring)
    ):
        yield f"{path}: Returns"


def test_docstrings_have_the_sections_that_signatures_need() -> None:
    functions = [(path, value) for path, value in public() if not inspect.isclass(value)]
    assert sorted(lack for path, value in [*functions, *methods()] for lack in lacks(path, value)) == []


def imports(code: str) -> Iterator[str]:
    """Yield the modules of dfact that a piece of code imports, and of what it imports from dfact, the names."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_examples_import_public_names_alone() -> None:
    codes = [(block.where, block.text) for name, blocks in SECTIONS.items() for block in blocks if block.kind == "python"]
    codes = [(where, text) for where, text in codes if where.partition(".md")[0] not in CONTRIBUTORS]
    for path, value in [*public(), *methods()]:
        lines = re.findall(r"(?m)^\s*(?:>>>|\.\.\.) ?(.*)$", inspect.getdoc(function_of(value)) or "")
        codes.append((path, "\n".join(lines)))
    allowed = {path for path, _ in public()} | {module.__name__ for module in MODULES}
    found = [f"{where}: {name}" for where, code in codes for name in imports(code) if name.split(".")[0] == "dfact" and name not in allowed]
    assert found == []


def parameters() -> dict[str, set[str]]:
    """Return the parameters of public functions, classes and methods by their names without the path."""
    found: dict[str, set[str]] = {}
    for path, value in [*public(), *methods()]:
        function = value if inspect.isclass(value) else function_of(value)
        if callable(function) and not (inspect.isclass(value) and issubclass(value, BaseException)):
            found.setdefault(path.rpartition(".")[2], set()).update(inspect.signature(function).parameters)
    return found


def unknown_arguments(call: str, known: dict[str, set[str]]) -> set[str]:
    """Return the names that a call such as ``predict_entries(rows, columns)`` gives to arguments, and that name none of its parameters.

    A single name may be that of the reader's variable.
    """
    parts = re.fullmatch(r"(?:[\w.]*\.)?(\w+)\((.*)\)", call)
    if parts is None or parts[1] not in known:
        return set()
    words = [word.strip() for word in parts[2].split(",")]
    positional = {word for word in words if re.fullmatch(r"[A-Za-z_]+", word)}
    named = {word.partition("=")[0] for word in words if re.match(r"\w+=", word)}
    return (named | (positional if len(positional) > 1 else set())) - known[parts[1]]


def test_calls_in_sentences_name_parameters() -> None:
    known = parameters()
    pages = [page for page in TEXTS if page != "changelog" and not page.startswith("from-")]  # which have calls of others
    calls = [(page, call) for page in pages for call in spans(TEXTS[page]) if "set_params(" not in call]
    assert [(page, call, found) for page, call in calls if (found := unknown_arguments(call, known))] == []
    assert unknown_arguments("predict(rows, columns)", known) == {"columns", "rows"}
    assert unknown_arguments("dfact.PCA(n_components=3, tola=1)", known) == {"tola"}


def undocumented_fields(owner: Any) -> Iterator[str]:
    """Yield the public fields of a dataclass without a docstring below them."""
    (definition,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(definition, ast.ClassDef)
    for node, following in pairwise([*definition.body, ast.Pass()]):
        documented = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        field = isinstance(node, ast.AnnAssign) and not ast.unparse(node.annotation).startswith("ClassVar")
        if field and not documented and not ast.unparse(node.target).startswith("_"):
            yield ast.unparse(node.target)


def test_fields_of_public_records_have_docstrings() -> None:
    records = [(path, value) for path, value in public() if inspect.isclass(value) and is_dataclass(value)]
    assert len(records) >= 10
    assert [f"{path}.{name}" for path, owner in records for name in undocumented_fields(owner)] == []


def test_the_site_lists_every_guide() -> None:
    listed = "\n".join(path.read_text() for path in (SITE / "sections").glob("*.md")).splitlines()
    assert [page for page, path in GUIDES.items() if str(path.relative_to(ROOT).with_suffix("")) not in listed] == []


def test_the_picture_of_the_layers_is_true() -> None:
    drawn = re.findall(r'class="layer"[^>]*>(\w+)<', (SITE / "static" / "layers.svg").read_text())
    assert sorted(drawn) == sorted(name for names in LEVELS for name in names if name != "__main__")
    levels = {name: level for level, names in enumerate(LEVELS) for name in names}
    main = drawn[: drawn.index("kernels") + 1]
    assert [levels[name] for name in main] == sorted((levels[name] for name in main), reverse=True)


def defined(file: str) -> set[str]:
    """Return the names that a file of the package defines, methods as Class.method."""
    found = set()
    for node in ast.parse((ROOT / "dfact" / file).read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def test_the_trace_of_a_pass_names_what_exists() -> None:
    stops = re.findall(r"(?m)^    (\w+(?:/\w+)*\.py) +([\w.]+)", TEXTS["architecture"])
    assert len(stops) >= 30
    assert [f"{file}: {name}" for file, name in stops if name != "Pass.step" and name not in defined(file)] == []
