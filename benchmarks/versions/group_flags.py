"""Items that `compare` flags in six questionnaires, with this version and with an earlier one.

    python -m benchmarks.versions.group_flags --before FOLDER [--people 1000] [--cases WORD ...]

FOLDER is a checkout of the earlier version, made for instance by ``git worktree add FOLDER COMMIT``. Both versions fit ICQF, with the
groups as confounder, to the same people: at most ``--people`` of each group. Scales are those of the largest loadings.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.common import REAL_DATA, report

_COMPARE = """
import inspect, json, sys, warnings
import pandas as pd
import dfact
warnings.simplefilter("ignore")
table = pd.read_parquet(sys.argv[1])
group = pd.DataFrame({"group": table.pop("group")})
model = dfact.ICQF(int(sys.argv[2]), random_state=0).fit(table.to_numpy(float), confounders=group)
compare = dfact.selection.compare_groups
untested = {"test": False} if "test" in inspect.signature(compare).parameters else {"n_permutations": 0}  # of the version before
found = compare(model, table.to_numpy(float), "group", confounders=group, n_resamples=30, random_state=0, **untested)
def flagged(frame):
    if frame is None:
        return []
    items = frame.index[frame["flagged"]] if "flagged" in frame else frame.index
    return [table.columns[int(item)] for item in items.get_level_values("item")]
print(json.dumps([flagged(found.effects), flagged(found.mantel_tests), flagged(found.dif_items)]))
"""


@dataclass(frozen=True)
class Case:
    """A questionnaire, the variable with its groups, and two of its values, of which the first is the reference."""

    file: str
    items: slice
    components: int
    by: str
    levels: tuple[Any, Any]

    def table(self, people: int, seed: int = 0) -> pd.DataFrame:
        """Return the answers, NaN where missing, and the groups of a sample of complete groups' members."""
        path = REAL_DATA / self.file
        if not path.exists():
            sys.exit(f"{path.name} is missing: this benchmark needs the real questionnaires in {REAL_DATA}")
        raw = pd.read_csv(path, sep="\t" if ".tsv" in self.file else ",", keep_default_na=False)
        answers = raw.iloc[:, self.items].apply(pd.to_numeric, errors="coerce")
        answers = answers.where(answers > 0).assign(group=raw[self.by].astype(str))
        answers = answers[answers.drop(columns="group").notna().any(axis=1)]
        groups = [answers[answers["group"] == str(level)] for level in self.levels]
        chosen = pd.concat([group.sample(min(people, len(group)), random_state=seed) for group in groups])
        return chosen.sort_index().reset_index(drop=True)


CASES = {
    "ipip_ascado by gender": Case("ipip_ascado.csv", slice(0, 40), 4, "gender", (1, 2)),
    "kims by gender": Case("kims.csv", slice(0, 39), 4, "gender", (1, 2)),
    "npi by gender": Case("npi.csv", slice(1, 41), 5, "gender", (1, 2)),
    "big5 by gender": Case("big5.tsv.gz", slice(7, 57), 5, "gender", (1, 2)),
    "sd3 by country": Case("sd3.tsv.gz", slice(0, 27), 3, "country", ("GB", "US")),
    "ecr by gender": Case("ecr.csv.gz", slice(0, 36), 4, "gender", (1, 2)),
}


def flags(root: Path, case: Case, table: Path) -> list[list[str]]:
    """Return the items flagged by the model or at equal factors, by Mantel's test, and by both, with the version at ``root``."""
    environment = os.environ | {"PYTHONPATH": str(root), "OPENBLAS_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", _COMPARE, str(table), str(case.components)]
    done = subprocess.run(arguments, env=environment, cwd=table.parent, check=True, stdout=subprocess.PIPE)
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--people", type=int, default=1000, help="most people of a group")
    parser.add_argument("--cases", nargs="+", default=[""], help="words, of which a case's name has one")
    options = parser.parse_args()
    versions = {"before": options.before.resolve(), "now": Path(__file__).resolve().parents[2]}
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if not any(word in name for word in options.cases):
            continue
        with tempfile.TemporaryDirectory() as folder:
            path, table = Path(folder) / "table.parquet", case.table(options.people)
            table.to_parquet(path)
            found = {version: flags(root, case, path) for version, root in versions.items()}
        sizes = " + ".join(str(int(np.sum(table["group"] == str(level)))) for level in case.levels)
        for version, lists in found.items():
            screens = dict(zip(("first screen", "Mantel", "findings"), lists, strict=True))
            rows.append({"case": name, "people": sizes, "version": version, **{key: " ".join(items) for key, items in screens.items()}})
            print({key: value if key == "findings" else value.count(" ") + bool(value) for key, value in rows[-1].items()}, flush=True)
    report("group_flags", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
