"""The models and the slices of dfact, which others find here by their names.

A slice is an optional field of application: a folder of the package that no other room imports. This list alone names its modules, as the
entry points of another package do (:mod:`dfact.extensions`). Without the folder, everything else works, and a request for what the slice
has is answered with its name and the command that installs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from dfact.errors import ParameterError


@dataclass(frozen=True)
class Entry:
    """A model that comes with dfact."""

    name: str
    """Name of its class: public in ``dfact``, and the class by which a saved model is found."""
    module: str
    """Module that defines the class."""
    command: str | None
    """Name of its commands, as in ``dfact fit icqf``; None for a model without commands."""
    presenter: str | None = None
    """Module and class of what a report shows of it, such as ``dfact.models.pca.presenter:PCAPresenter``; None for what any model has."""
    guide: str = "extending"
    """Name of its guide, as in ``dfact help questionnaires``."""
    specs: str | None = None
    """Module with the specifications of its commands, ``SPECS``."""

    def load(self) -> type[Any]:
        """Import the class, a Factorization."""
        model: type[Any] = getattr(import_module(self.module), self.name)
        return model


@dataclass(frozen=True)
class Slice:
    """An optional field of application."""

    name: str
    """Name of its folder, and of its extra: ``pip install "dfact[NAME]"``."""
    about: str
    """A phrase for messages."""
    models: tuple[Entry, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """Public names of ``dfact``, or of a package of it such as ``selection.block_bootstrap``, with the modules that have them."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Commands of ``dfact`` by name, such as ``dfact.genetics.commands:pong``."""
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules with a tuple ``FORMATS`` of file formats, and the endings of their files."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """Further modules that the core asks for, by the names that it has for them."""
    options: tuple[str, ...] = ()
    """Options that it adds to commands of the core, such as ``--population``."""
    demos: Mapping[str, str] = field(default_factory=dict)
    """Kinds of ``dfact demo``, such as ``dfact.genetics.demo:GENOTYPES``."""
    guides: tuple[str, ...] = ()
    """Guides in its folder ``guides``, as in ``dfact help jobs``."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """Guides of commands, its own and those of the core for which its guide has more to say."""
    dictionaries: tuple[str, ...] = ()
    """Classes of dictionaries next to tables, such as ``dfact.formats.redcap:RedcapDictionary``."""

    @property
    def installed(self) -> bool:
        """Whether the folder of the slice is there."""
        return find_spec(f"dfact.{self.name}") is not None

    def missing(self, what: str) -> str:
        """Return what to tell a user who asks for a part of this slice, which is not there."""
        return f'{what} is part of dfact\'s {self.name} ({self.about}), which is not installed: pip install "dfact[{self.name}]"'


NAMES: Mapping[str, str] = {
    "selection.bootstrap": "dfact.stability.bootstrap",
    "selection.replicability": "dfact.models.cp.replicability",
    "selection.select_by_held_out": "dfact.models.expectile.held_out_entries",
    "selection.select_by_modularity": "dfact.models.gom.modularity",
    "selection.select_each_by_held_out": "dfact.models.expectile.held_out_entries",
    "selection.select_number_of_classes": "dfact.models.gom.number_of_classes",
    "selection.select_number_of_components": "dfact.models.pca.number_of_components",
    "selection.select_penalty": "dfact.models.cp.penalty_selection",
    "report.plot_memberships": "dfact.models.gom.plots",
}
"""Public names of a package of dfact that a family or a room above it has, with their modules."""
KIND = "model"
"""Kind of the group that holds a saved model."""


def _entry(name: str, module: str, command: str, presenter: str, guide: str) -> Entry:
    """Return a model of the core: its module in ``models``, its presenter and its commands in the folder of its family."""
    family = f"dfact.models.{module.partition('.')[0]}"
    return Entry(name, f"dfact.models.{module}", command, f"{family}.presenter:{presenter}", guide, f"{family}.commands")


_CORE = (
    _entry("ICQF", "bounded_nmf.icqf", "icqf", "ICQFPresenter", "questionnaires"),
    _entry("NMF", "bounded_nmf.nmf", "nmf", "NMFPresenter", "nmf"),
    _entry("PCA", "pca.estimator", "pca", "PCAPresenter", "pca"),
    _entry("GradeOfMembership", "gom.estimator", "gom", "GoMPresenter", "classes"),
    _entry("ExpectileMF", "expectile.estimator", "emf", "ExpectilePresenter", "expectiles"),
    _entry("ElasticCP", "cp.elastic", "cp", "CPPresenter", "tensors"),
    _entry("CPALS", "cp.als", "cpals", "CPPresenter", "tensors"),
)
SLICES = (
    Slice(
        "batch",
        "jobs of several steps, on one machine, under Slurm and on Kubernetes",
        commands={"run": "dfact.batch.run:run", "deploy": "dfact.batch.deploy:deploy"},
        guides=("jobs",),
        topics={"run": "jobs", "deploy": "jobs"},
    ),
    Slice(
        "formats",
        "files of statistical programs, spreadsheets, R, HDF5 and MATLAB, and dictionaries of REDCap and UK Biobank",
        readers={
            "dfact.formats.hdf5": (".h5", ".hdf5", ".h5ad"),
            "dfact.formats.matlab": (".mat",),
            "dfact.formats.matrix_market": (".mtx", ".mtx.gz"),
            "dfact.formats.netcdf": (".nc", ".nc4"),
            "dfact.formats.r": (".rds", ".rda", ".rdata"),
            "dfact.formats.spreadsheet": (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods"),
            "dfact.formats.statistical.sas": (".sas7bdat", ".xpt"),
            "dfact.formats.statistical.spss": (".sav", ".zsav", ".por"),
            "dfact.formats.statistical.stata": (".dta",),
        },
        dictionaries=("dfact.formats.redcap:RedcapDictionary", "dfact.formats.uk_biobank:UKBiobankDictionary"),
    ),
    Slice(
        "genetics",
        "genotypes, admixtures and structure plots",
        models=(
            Entry(
                "Admixture",
                "dfact.genetics.admixture",
                "admixture",
                "dfact.genetics.presenter:AdmixturePresenter",
                "admixture",
                "dfact.genetics.specs",
            ),
        ),
        names={
            "import_genotypes": "dfact.genetics.importer",
            "report.plot_structure": "dfact.genetics.structure_plot",
            "report.read_frequencies": "dfact.genetics.admixture_files",
            "report.read_memberships": "dfact.genetics.admixture_files",
            "selection.block_bootstrap": "dfact.genetics.block_bootstrap",
        },
        commands={"pong": "dfact.genetics.pong_command:pong", "structure": "dfact.genetics.structure_command:structure"},
        readers={
            "dfact.genetics.plink": (".bed", ".pgen"),
            "dfact.genetics.vcf": (".vcf", ".vcf.gz", ".vcf.bgz", ".bcf"),
            "dfact.genetics.vcf_zarr": (".vcz",),
        },
        parts={
            "admixture_files": "dfact.genetics.admixture_files",
            "block_bootstrap": "dfact.genetics.block_bootstrap",
            "import_genotypes": "dfact.genetics.importer",
            "import_options": "dfact.genetics.import_options",
            "population_sizes": "dfact.genetics.presenter",
            "scores_plot": "dfact.genetics.scores_plot",
            "variants": "dfact.genetics.matcher",
        },
        options=(
            "--population",
            "--population-column",
            "--empty-variants",
            "--multiallelic",
            "--drop-invalid",
            "--chromosomes",
            "--keep-failing",
        ),
        demos={"genotypes": "dfact.genetics.demo:GENOTYPES"},
        guides=("admixture", "from-admixture"),
        topics={"pong": "admixture", "structure": "admixture"},
    ),
    Slice(
        "questionnaires",
        "items and scales of questionnaires: describe, factor analysis, groups and tables for papers",
        models=(
            Entry(
                "FactorAnalysis",
                "dfact.questionnaires.factor_analysis.estimator",
                "fa",
                "dfact.questionnaires.factor_analysis.presenter:FactorAnalysisPresenter",
                "psychometrics",
                "dfact.questionnaires.commands.factor_analysis",
            ),
        ),
        names={
            "Description": "dfact.questionnaires.description",
            "describe": "dfact.questionnaires.description",
            "selection.compare_groups": "dfact.questionnaires.groups.comparison",
            "selection.select_number_of_factors": "dfact.questionnaires.factor_analysis.number_of_factors",
        },
        commands={
            "compare": "dfact.questionnaires.commands.compare:compare",
            "describe": "dfact.questionnaires.commands.describe:describe",
        },
        parts={
            "apa": "dfact.questionnaires.apa.models",
            "description": "dfact.questionnaires.description",
            "number_of_factors": "dfact.questionnaires.factor_analysis.number_of_factors",
            "scales": "dfact.questionnaires.scales",
        },
        guides=("from-psych", "psychometrics"),
        topics={"compare": "questionnaires", "describe": "psychometrics", "report": "psychometrics"},
    ),
    Slice(
        "sites",
        "fits across sites whose rows stay there",
        names={"Sites": "dfact.sites.transport"},
        commands={"site": "dfact.sites.command:site"},
        parts={"across_sites": "dfact.sites.across_sites"},
        demos={"federated": "dfact.sites.demo:FEDERATED"},
        guides=("data-office", "federated"),
        topics={
            "site": "federated",
            "site contract": "federated",
            "site join": "federated",
            "site log": "data-office",
            "site policy": "data-office",
        },
    ),
)
INSTALLED = tuple(each for each in SLICES if each.installed)
MISSING = tuple(each for each in SLICES if not each.installed)
CATALOGUE = _CORE + tuple(entry for each in INSTALLED for entry in each.models)
"""All models that are installed."""
BY_NAME = {entry.name: entry for entry in CATALOGUE}
BY_COMMAND = {entry.command: entry for entry in CATALOGUE if entry.command is not None}


def load(name: str) -> Any:
    """Import what a text such as ``dfact.genetics.commands:pong`` names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def find_public(name: str) -> Any:
    """Return what another room has under a public name, such as ``selection.block_bootstrap``; raise AttributeError for other names."""
    if name in NAMES:
        return load(f"{NAMES[name]}:{name.rpartition('.')[2]}")
    for each in SLICES:
        if name in each.names:
            if not each.installed:
                raise AttributeError(each.missing(f"dfact.{name}"))
            return load(f"{each.names[name]}:{name.rpartition('.')[2]}")
    package, _, attribute = f"dfact.{name}".rpartition(".")
    raise AttributeError(f"module {package!r} has no attribute {attribute!r}")


def absent(package: str = "") -> list[str]:
    """Return the public names of ``dfact``, or of a package of it such as ``selection``, that no installed slice has."""
    names = [name for each in MISSING for name in (*each.names, *(entry.name for entry in each.models))]
    return [name.rpartition(".")[2] for name in names if name.rpartition(".")[0] == package]


def installed_part(name: str) -> Any:
    """Import a further module of a slice; None if the slice is not installed."""
    return next((import_module(each.parts[name]) for each in INSTALLED if name in each.parts), None)


def find_part(name: str, asked: str) -> Any:
    """Import a further module of a slice; raise ParameterError for ``asked`` if the slice is not installed."""
    for each in SLICES:
        if name in each.parts:
            if not each.installed:
                raise ParameterError(each.missing(asked))
            return import_module(each.parts[name])
    raise KeyError(name)
