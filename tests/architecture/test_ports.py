"""No cluster of a test, an example or a benchmark takes a fixed port for its dashboard, not even the one that Dask takes by default.

``dashboard_address=None`` means Dask's default, 8787; port 0 is any free one.
"""

import ast
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from distributed import LocalCluster

from tests.architecture.layers import ROOT
from tests.documentation.pages import SECTIONS

STARTED = {"LocalCluster", "Scheduler"}
SETTING = "dashboard_address"


def _examples(tree: ast.Module) -> Iterator[str]:
    """Yield the code in the texts of a module: examples of docstrings, and programs that it writes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "LocalCluster(" in node.value:
            lines = [line.strip() for line in node.value.splitlines()]
            examples = [line[4:] for line in lines if line.startswith((">>> ", "... "))]
            yield "\n".join(examples) or node.value


def offenders(code: str) -> list[int]:
    """Return the lines that start a cluster without a dashboard on any free port, or that set another address."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a sentence
        return []
    found = []
    for node in ast.walk(tree):
        addresses: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            addresses = [
                value for key, value in zip(node.keys, node.values, strict=True) if ast.unparse(key or ast.Name("")) == f"'{SETTING}'"
            ]
        elif isinstance(node, ast.Call):
            addresses = [each.value for each in node.keywords if each.arg == SETTING]
            settings = any(
                each.arg in (None, "scheduler_options") for each in node.keywords
            )  # whose dictionary is looked at where it is written
            if ast.unparse(node.func).rpartition(".")[2] in STARTED and not addresses and not settings:
                found.append(node.lineno)
        found += [each.lineno for each in addresses if not ast.unparse(each).endswith(":0'")]
    return found + [line for text in _examples(tree) if text != code for line in offenders(text)]


def test_clusters_take_any_free_port_for_their_dashboard() -> None:
    modules = [path for folder in (ROOT, ROOT.parent / "tests", ROOT.parent / "benchmarks") for path in sorted(folder.rglob("*.py"))]
    codes = {path.name: path.read_text() for path in modules if path != Path(__file__)}
    codes |= {block.where: block.text for blocks in SECTIONS.values() for block in blocks if block.kind == "python"}
    started = {name: code for name, code in codes.items() if "LocalCluster(" in code or "Scheduler(" in code or SETTING in code}
    assert len(started) >= 15
    assert {name: lines for name, code in started.items() if (lines := offenders(code))} == {}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ('LocalCluster(n_workers=1, dashboard_address="127.0.0.1:0")', 0),
        ("LocalCluster(n_workers=1, dashboard_address=None)", 1),
        ("with distributed.LocalCluster(n_workers=1) as cluster:\n    pass", 1),
        ('settings = {"dashboard_address": ":8787"}\nLocalCluster(**settings)', 1),
        ('"""A cluster.\n\n>>> with LocalCluster(processes=False) as cluster:\n...     pass\n"""', 1),
        ("CODE = '''\nfrom distributed import LocalCluster\ncluster = LocalCluster()\n'''", 1),
        ('print("LocalCluster(…) is started by the caller")', 0),
    ],
)
def test_fixed_ports_are_found(code: str, expected: int) -> None:
    assert len(offenders(code)) == expected


def test_a_cluster_starts_where_the_default_port_is_taken() -> None:
    with closing(socket.socket()) as taken:
        with suppress(OSError):  # by another process
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        # A port that is taken makes Dask warn, and warnings are errors here.
        with LocalCluster(n_workers=0, processes=False, protocol="tcp", host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster:
            assert cluster.scheduler.http_server.port != 8787
