"""Modules stay short enough to read, and no folder hides another behind a prefix."""

from collections import defaultdict

from tests.architecture.layers import ROOT, modules

LIMIT = 600
WITHOUT_REASON = 400
"""Lines up to which a module needs no reason for its length: a comment line ``# Long because …`` below its docstring."""


def test_modules_stay_short() -> None:
    offenders = []
    for name, path in modules().items():
        lines = path.read_text().splitlines()
        reason = any(line.startswith("# Long because ") for line in lines)
        if len(lines) > (LIMIT if reason else WITHOUT_REASON):
            offenders.append(
                f"{name} has {len(lines)} lines, expected at most {LIMIT}, and a line '# Long because …' above {WITHOUT_REASON}"
            )
    assert offenders == []


def siblings() -> dict[str, int]:
    """Prefixes that at least three modules of one folder have in common, as ``folder/prefix_``."""
    found: dict[str, int] = defaultdict(int)
    for path in modules().values():
        if path.name != "__init__.py":
            found[f"{(path.parent / path.stem.split('_')[0]).relative_to(ROOT).as_posix()}_"] += 1
    return {prefix: count for prefix, count in sorted(found.items()) if count >= 3}


def test_no_three_siblings_have_a_common_prefix() -> None:
    assert siblings() == {}
