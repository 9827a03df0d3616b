"""``dfact demo federated``."""

from dfact.cli.demonstration import FOLDER, Demo, Step

FEDERATED_SCRIPT = f"""\
import subprocess
import sys
from pathlib import Path

import dfact

FOLDER = "{FOLDER}"

if __name__ == "__main__":
    # The answers are public: 500 people are too few for the default policy.
    Path(f"{{FOLDER}}/policy.toml").write_text("max_numbers = 1\\n")
    with dfact.Sites(["north", "south"], "127.0.0.1:0", insecure=True, contract=f"{{FOLDER}}/contract.json") as sites:
        join = [sys.executable, "-m", "dfact.cli.main", "site", "join", sites.address, "--insecure", "--overwrite"]
        own = [["--name", name, "--data", f"{{FOLDER}}/{{name}}.zarr", "--output", f"{{FOLDER}}/{{name}}"] for name in ("north", "south")]
        join += ["--policy", f"{{FOLDER}}/policy.toml"]
        programs = [subprocess.Popen([*join, *options]) for options in own]
        model = sites.fit(dfact.ICQF(n_components=4))
    for program in programs:
        program.wait()
    print(dfact.report.text(model, top=2))
"""
_IMPORT_SITE = (
    f"dfact import {FOLDER}/{{site}}.csv {FOLDER}/{{site}}.zarr --items 'AS*,SC*,AD*,DO*' --missing 0 --valid-range 1 5 "
    f"--confounder age:continuous --confounder-range age 10 100 --confounder-missing 0 --dictionary {FOLDER}/items.csv"
)

FEDERATED = Demo(
    "federated",
    "the questionnaire at two sites, whose answers stay there",
    "The questionnaire, split between two sites of other people. A fit across the sites exchanges sums alone.",
    "dfact.data.examples.questionnaires:write_sites",
    {
        "north.csv": "the answers of 500 people",
        "south.csv": "those of the others",
        "items.csv": "the texts, scales and keys of the items",
        "federated.py": "the script that starts the sites, and fits the model",
    },
    (
        *(Step(f"Import the data of {site}:", _IMPORT_SITE.format(site=site)) for site in ("north", "south")),
        Step(
            "Write the columns and ranges that the data of both sites must have:",
            f"dfact site contract {FOLDER}/north.zarr {FOLDER}/contract.json",
        ),
        Step("Start the two sites and fit a model across them:", f"python {FOLDER}/federated.py", writes=False),
        Step("Print what has left one of them:", f"dfact site log {FOLDER}/north/log.jsonl", writes=False),
    ),
    f"dfact report {FOLDER}/north/icqf.model north.html --data {FOLDER}/north.zarr",
    companions=("south", "policy.toml"),  # the results as those of north, and what the script writes
    scripts={"federated.py": FEDERATED_SCRIPT},
    extra="federated",
    modules=("grpc",),
)
