"""Attack sites that have the default policy, and count the persons found.

    python -m benchmarks.sites.attacks [--only NAME ...] [--code FOLDER]

Each attack runs in this process against sites with the policy that ``dfact site join`` has without options. It has what the coordinator
receives from an honest protocol, or sends what it likes if it is dishonest, and compares what it finds with the truth. ``--code`` runs the
same attacks on the dfact in another folder, too, such as a worktree of an earlier commit; figures in brackets are those of an audit, for
attacks that cannot run there. Exits with code 1 if a person was found.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of attacks")
    parser.add_argument("--code", type=Path, help="folder of another version of dfact to compare with")
    parser.add_argument("--json", action="store_true", help="run the attacks on the other version alone, and print a line of JSON for each")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.json:
        _use(options.code)
        for found in _carried_out(options.only):
            print(json.dumps(found), flush=True)
        return 0
    before = {found["attack"]: found for found in _elsewhere(options.code, options.only)} if options.code else {}
    rows = []
    for found in _carried_out(options.only):
        then = before.get(found["attack"], {})
        figure = f"[{found['audit']}]" if found["audit"] and not then.get("ran") else then.get("found", "")
        shown = {"attack": found["attack"], "coordinator": found["coordinator"], "before": figure, "after": found["found"]}
        rows.append({**shown, "seconds": found["seconds"], "stopped by": found["stopped"][:150]})
        print(f"{found['attack']}: {found['found']}  ({found['summary']})", flush=True)
    from benchmarks.common import report

    persons = all(row["after"].startswith("0 of") for row in rows)
    report("federation attacks", rows, [("no person is found within the default policy", persons)])
    return 0 if persons else 1


def _use(code: Path) -> None:
    """Import dfact from another folder; the attacks stay those of this one."""
    sys.path.insert(0, str(code.resolve()))
    import dfact

    sys.path.pop(0)
    assert Path(dfact.__file__).is_relative_to(code.resolve()), f"dfact was imported from {dfact.__file__}"


def _carried_out(only: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    from benchmarks.sites.attacks.table import ATTACKS

    unknown = set(only or ()) - ATTACKS.keys()
    if unknown:
        sys.exit(f"there is no attack {', '.join(sorted(unknown))}, expected some of {', '.join(ATTACKS)}")
    for name, attack in ATTACKS.items():
        if only and name not in only:
            continue
        begin, ran = time.perf_counter(), True
        try:
            outcome = attack.run()
            found, stopped = f"{outcome.recovered} of {outcome.tried}", outcome.stopped
        except Exception as error:  # an attack on another version may need what that version lacks
            traceback.print_exc()
            found, stopped, ran = "error", f"{type(error).__name__}: {error}", False
        who = "honest" if attack.honest else "dishonest"
        yield {
            "attack": name,
            "coordinator": who,
            "found": found,
            "stopped": stopped,
            "ran": ran,
            "audit": attack.audit,
            "summary": attack.summary,
            "seconds": round(time.perf_counter() - begin, 1),
        }


def _elsewhere(code: Path, only: Sequence[str] | None) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.sites.attacks", "--json", "--code", str(code), *(["--only", *only] if only else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as program:
        assert program.stdout is not None, "it is a pipe"
        for line in program.stdout:
            if line.startswith("{"):
                yield json.loads(line)


if __name__ == "__main__":
    sys.exit(main())
