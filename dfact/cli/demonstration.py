"""The declaration of a demo: what it writes, and the commands that it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FOLDER = "dfact-demo"


@dataclass(frozen=True)
class Step:
    """A command that a demo runs, and what is printed before it."""

    text: str
    command: str
    writes: bool = True
    """Whether it replaces the results of an earlier demo, by ``--overwrite``."""


@dataclass(frozen=True)
class Demo:
    """A demonstration of one kind of data."""

    guide: str
    title: str
    """A phrase for the help."""
    summary: str
    """A description of the data."""
    write: str
    """Function that writes the files into a folder, such as ``dfact.data.examples.arrays:write_spectra``."""
    files: Mapping[str, str]
    """Descriptions of the files, by their names."""
    steps: tuple[Step, ...]
    next: str
    """The next command of the guide."""
    companions: tuple[str, ...] = ()
    """Names of further files, which ``files`` describes with others."""
    scripts: Mapping[str, str] = field(default_factory=dict)
    """Python scripts by the names of their files."""
    extra: str | None = None
    """Extra of dfact that the demo needs, beyond those of a plain installation."""
    modules: tuple[str, ...] = ()
    """Modules that the extra provides and that the demo imports."""
    slices: tuple[str, ...] = ()
    """Names of the slices that have its commands and files."""

    @property
    def phrase(self) -> str:
        """The title, with the extra."""
        return f"{self.title} (needs dfact[{self.extra}])" if self.extra else self.title

    @property
    def results(self) -> set[str]:
        """Names of what the commands write."""
        words = {word for step in self.steps for word in step.command.split()}
        written = {word.removeprefix(f"{FOLDER}/").partition("/")[0] for word in words if word.startswith(f"{FOLDER}/")}
        return written - {*self.files, *self.scripts}
