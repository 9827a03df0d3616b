"""Write what a version of dfact stores, for the tests of later versions: ``python -m tests.upgrades.write`` for today's.

That adds a file to ``stores``; earlier ones stay. To write those of an earlier commit, check it out elsewhere and run this file with
its path in ``PYTHONPATH``, naming the recipes that it has the features for: ``python tests/upgrades/write.py answers.zarr icqf.model``.
Each file holds the commit, its date and the versions of libraries in ``about.json``, and the figures in ``expected.npz``.
"""

import json
import subprocess
import sys
import tarfile
import warnings
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import dfact

sys.path.insert(0, str(Path(__file__).parents[2]))  # behind PYTHONPATH would be the tests of the earlier commit
from tests.upgrades.recipes import RECIPES

STORES = Path(__file__).parent / "stores"


def write(names: list[str]) -> Path:
    """Follow the recipes with the imported dfact, and pack what they leave; return the path of the file."""
    commit, date = _git("show", "-s", "--format=%h %cI", "HEAD").split()
    packages = ("dfact", "numba", "numpy", "pandas", "scikit-learn", "scipy", "zarr")
    about = {"commit": commit, "date": date, "recipes": names, "packages": {name: version(name) for name in packages}}
    with TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(temporary)
        expected = {f"{name}/{key}": values for name in names for key, values in RECIPES[name](folder).items()}
        stored = json.loads((folder / names[0] / "zarr.json").read_text())["attributes"]["dfact"]["version"]
        np.savez(folder / "expected.npz", **expected)
        (folder / "about.json").write_text(json.dumps({"format": stored} | about, indent=1))
        path = STORES / f"format-{stored}-{commit}.tar.xz"
        STORES.mkdir(exist_ok=True)
        with tarfile.open(path, "w:xz") as archive:
            archive.add(folder, arcname="", filter=_anonymous)
    return path


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _git(*arguments: str) -> str:
    """Ask git about the tree from which dfact was imported."""
    return subprocess.run(["git", *arguments], cwd=Path(dfact.__file__).parent, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.stdout.write(f"{write(sys.argv[1:] or [*RECIPES])}\n")
