"""The gallery: pictures that the guides' commands make, drawn while the site is built, each with its command and its guide."""

import io
import shlex
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from dfact.cli.main import main


@dataclass(frozen=True)
class Picture:
    """A picture and the command that draws it, which ends with ``--plot`` and the picture's file."""

    title: str
    text: str
    command: str
    guide: str

    @property
    def file(self) -> str:
        return self.command.split()[-1]


@dataclass(frozen=True)
class Screenshot:
    """A picture of the tour, which takes a browser or minutes to make."""

    title: str
    text: str
    file: str


DEMOS = ("dfact demo questionnaire", "dfact demo genotypes", "dfact demo tensor")
PICTURES = (
    Picture(
        "Loadings of factors adjusted for age and gender",
        "Points of the scale by which an answer rises as a factor goes from 0 to 1.",
        "dfact fit icqf dfact-demo/answers.zarr six.model --components 6 --plot loadings.png",
        "questionnaires",
    ),
    Picture(
        "Loadings of a factor analysis",
        "Correlated factors by minimum residuals and oblimin, with signs.",
        "dfact fit fa dfact-demo/answers.zarr fa.model -k 4 --rotation oblimin --plot fa.png",
        "psychometrics",
    ),
    Picture(
        "How many factors? The scree plot",
        "Eigenvalues of the correlations, of components and of common factors, next to those of unrelated answers.",
        "dfact select fa dfact-demo/answers.zarr -k 1-8 --plot scree.png",
        "psychometrics",
    ),
    Picture(
        "Answers of each class",
        "The expected answer to each item of a pure member of each class.",
        "dfact fit gom dfact-demo/answers.zarr classes.model --components 3 --seed 0 --plot classes.png",
        "classes",
    ),
    Picture(
        "How many classes?",
        "Modularity of memberships with 2 to 6 classes.",
        "dfact select gom dfact-demo/answers.zarr chosen.model -k 2-6 --criterion modularity --seed 0 --plot modularity.png",
        "classes",
    ),
    Picture(
        "Ancestry of individuals",
        "Each bar is an individual, each colour a population of the model.",
        "dfact fit admixture dfact-demo/genotypes.zarr three.model -k 3 --plot ancestry.png",
        "admixture",
    ),
    Picture(
        "Components of a tensor",
        "The vectors of all modes: spectra of three substances.",
        "dfact fit cp dfact-demo/spectra.zarr spectra.model -k 3 --lam 1e-6 --init svd --seed 0 --plot modes.png",
        "tensors",
    ),
)
SCREENSHOTS = (
    Screenshot("A report", "The leading items of each factor, in the report of the tour.", "factors"),
    Screenshot("How many factors? Cross-validation", "Error of held-out answers for three penalties.", "errors"),
    Screenshot("Loadings in a report", "The heat map in the report of the tour.", "loadings"),
)


def run(command: str) -> None:
    """Run a command of dfact in this process. What it prints is shown only if it fails."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        code = main(shlex.split(command)[1:])
    if code != 0:
        raise RuntimeError(f"{command} exits with {code}, expected 0; it prints\n{printed.getvalue()}")


def gallery(folder: Path) -> None:
    """Draw all pictures into ``folder``/gallery, and write the page that shows them."""
    target = folder / "gallery"
    target.mkdir()
    parts = ["# Gallery", f"After {', '.join(f'`{demo}`' for demo in DEMOS)} these commands draw these pictures, on your machine as here."]
    with TemporaryDirectory() as temporary, chdir(temporary):
        for demo in DEMOS:
            run(demo)
        for picture in PICTURES:
            run(picture.command)
            (target / picture.file).write_bytes(Path(picture.file).read_bytes())
            [page] = (path.relative_to(folder) for path in (folder / "dfact").rglob(f"guides/{picture.guide}.md"))
            link = f"[{picture.guide}]({page})"
            parts += [f"## {picture.title}", f"{picture.text} The guide on {link} explains it."]
            parts += [f"```sh\n{picture.command}\n```", f"![{picture.title}](gallery/{picture.file})"]
    for shot in SCREENSHOTS:
        parts += [
            f"## {shot.title}",
            f"{shot.text} See the [tour](dfact/guides/tour.md).",
            f"![{shot.title}](benchmarks/pictures/{shot.file}.png)",
        ]
    (folder / "gallery.md").write_text("\n\n".join(parts) + "\n")
