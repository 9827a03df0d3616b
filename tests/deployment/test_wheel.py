"""`dfact deploy` from an installed wheel, without a checkout of the source."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.batch.manifest_rules import MANIFESTS, ROOT, problems, render


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as the wheel has it, in a folder by itself."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "dfact", source / "dfact", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    command += ["--check-build-dependencies", "--wheel-dir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.further
@pytest.mark.process
def test_wheel_has_all_manifests(wheel: Path) -> None:
    def files(folder: Path) -> set[str]:
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    assert files(wheel / "dfact" / "batch" / "manifests") == files(MANIFESTS)


@pytest.mark.further
@pytest.mark.process
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_deploy_runs_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    step = '[[step]]\nrun = "fit icqf"\ndata = "s3://studies/a.zarr"\nmodel = "s3://studies/icqf.model"\n'
    (tmp_path / "study.toml").write_text('[job]\nstate = "s3://studies/state"\n' + step)
    environment = os.environ | {"PYTHONPATH": str(wheel)}
    where = [sys.executable, "-c", "import dfact; print(dfact.__file__)"]
    done = subprocess.run(where, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(wheel), "not the source"
    command = [sys.executable, "-m", "dfact.cli.main", "deploy", "study.toml", "deployed", "--image", "dfact:0.1.0", "--memory", "2GiB"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.move(tmp_path / "deployed", tmp_path / "moved")  # the folder needs nothing outside
    assert problems(render(tmp_path / "moved")) == []
