"""The tests of the core without slices: ``python -m tests.hidden SLICE … [-- OPTIONS]``.

Copies the checkout without the folders of these slices, or of all of them without a name, and runs pytest there with the options.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from dfact.catalogue import SLICES
from tests.tiers import ROOT


def copy_without(slices: set[str], folder: Path) -> None:
    """Copy the files of the checkout that git knows, or will know, without these slices."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        parts = Path(name).parts
        if not (parts[0] == "dfact" and parts[1] in slices) and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def main(arguments: list[str]) -> int:
    """Run the tests, and return the exit code of pytest."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:end], arguments[end + 1 :]
    known = {each.name for each in SLICES}
    slices = set(names) or known
    if slices - known:
        raise SystemExit(f"{', '.join(sorted(slices - known))}: expected slices, {', '.join(sorted(known))}")
    with TemporaryDirectory() as folder:
        copy_without(slices, Path(folder))
        environment = os.environ | {"PYTHONPATH": folder, "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", str(ROOT / ".kernels"))}
        return subprocess.call([sys.executable, "-m", "pytest", *options], cwd=folder, env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
