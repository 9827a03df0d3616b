"""``dfact fit admixture`` and ``dfact select admixture``."""

import click

from dfact.catalogue import BY_COMMAND
from dfact.cli.model_commands import ModelSpec, SelectSpec
from dfact.cli.options import component_numbers, seed

_UNSHRINK = {"unshrink": "dfact transform has it"}
SPECS = (
    ModelSpec(
        BY_COMMAND["admixture"],
        """Admixture: ancestry proportions of individuals.

        For genotypes, counts of an allele: each individual has ancestry proportions of several populations that sum to 1, and each
        population has allele frequencies, by maximum likelihood. Individuals must be unrelated: a family would become a population.
        Missing genotypes are left out. Confounders are not used.
        """,
        example=["dfact fit admixture dfact-demo/genotypes.zarr cohort.model -k 3"],
        plot="the ancestry proportions of the individuals",
        left_out=_UNSHRINK,
        changes={
            "n_components": {"help": "Number of populations; dfact select admixture chooses it."},
            "supervised": {"help": "Fix the ancestry proportions of the individuals whose population the dataset holds."},
        },
        select=SelectSpec(
            "dfact.selection.cross_validation.entry_cross_validation:cross_validate_entries",
            """Admixture: the number of populations.

            Chooses the number of populations that predicts held-out genotypes best. Every genotype belongs to one of several folds,
            at random. All candidates are fitted without each fold in the same passes over the data. The model with the chosen number is
            fitted to all genotypes and written to MODEL, if that is given.
            """,
            example=["dfact select admixture dfact-demo/genotypes.zarr cohort.model -k 2-4 --seed 0"],
            options=[
                component_numbers("Candidate numbers of populations."),
                click.option("--folds", "n_folds", default=5, help="Number of folds to which the genotypes are assigned."),
                seed("Seed of the folds."),
            ],
            plot=("dfact.report.selection:deviance_plot", "the error over the number of populations"),
            left_out=_UNSHRINK | {"supervised": "labels fix the populations", "rule": "the lowest error decides"},
        ),
    ),
)
