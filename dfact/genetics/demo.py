"""``dfact demo genotypes``."""

from dfact.cli.demonstration import FOLDER, Demo, Step

GENOTYPES = Demo(
    "admixture",
    "genotypes of 140 individuals as PLINK files",
    "Simulated genotypes of 140 individuals from three populations, some of mixed descent, as PLINK files.",
    "dfact.genetics.examples:write_cohort",
    {
        "cohort.bed": "the genotypes",
        "cohort.bim": "the SNPs",
        "cohort.fam": "the individuals",
        "cohort.pop": "the population of each individual, or - where it is unknown",
        "newcomers.bed": "the genotypes of 20 individuals who came later, with .bim, .fam and .pop",
    },
    (
        Step("Import the genotypes:", f"dfact import {FOLDER}/cohort.bed {FOLDER}/genotypes.zarr"),
        Step("Choose the number of populations:", f"dfact select admixture {FOLDER}/genotypes.zarr {FOLDER}/best.model -k 1-4 --seed 0"),
        Step(
            "Write the ancestry proportions as ADMIXTURE does, a line for each individual:",
            f"dfact export {FOLDER}/best.model {FOLDER}/cohort.3.Q",
        ),
    ),
    f"dfact structure structure.png {FOLDER}/best.model",
    companions=("newcomers.bim", "newcomers.fam", "newcomers.pop"),
)
