"""The kinds of ``dfact demo``: the files that each leaves, the commands that it runs, and its guide.

Paths of the commands begin with ``dfact-demo``, the default of ``--output``, as in the guides.
"""

from dfact.catalogue import INSTALLED, load
from dfact.cli.demonstration import FOLDER, Demo, Step

_ANSWERS = {
    "answers.csv": "the answers as a table",
    "items.csv": "the texts, scales and keys of the items",
    "survey.csv": "500 of the participants, as another survey program exports them",
    "new_people.csv": "60 participants who came later",
}
_IMPORT_ANSWERS = (
    f"dfact import {FOLDER}/answers.csv {FOLDER}/answers.zarr --items 'AS*,SC*,AD*,DO*' --missing 0 --confounder age:continuous "
    f"--confounder gender:categorical --confounder-missing 0 --empty-rows drop --dictionary {FOLDER}/items.csv"
)
_IMPORT_WAVE = (
    f"dfact import {FOLDER}/wave{{i}}.csv {FOLDER}/wave{{i}}.zarr --items 'AS*,SC*,AD*,DO*' --id-column person --missing 0 "
    f"--confounder age:continuous --confounder gender:categorical --confounder-missing 0 --valid-range 1 5 --dictionary {FOLDER}/items.csv"
)
_FACTORS = """\
Fit 4 factors in addition to the effects of age and gender. Each participant has a value from 0 to 1 on each
factor; from 0.5, a factor is strong. The number next to an item is its loading: the increase of the answer, in
points of the scale, as the factor goes from 0 to 1. Below the factors are their differences by age and gender.
Gender 1 is male, 2 female, 3 other; age compares the oldest (72) with the youngest (14). Impact is the
difference of a factor. A number next to an item is its difference between people with equal factors. The
anchor separates the two: most items have no such difference."""
CLUSTER_SCRIPT = f"""\
from distributed import Client, LocalCluster

import dfact

if __name__ == "__main__":  # a script needs this line, because Dask imports the script in its processes
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster, Client(cluster) as client:
        model = dfact.ICQF(n_components=4, executor=client).fit("{FOLDER}/answers.zarr")
    print(dfact.report.text(model, top=2))
"""

KINDS = {
    "questionnaire": Demo(
        "questionnaires",
        "40 statements that 1004 people rated",
        "1004 people rated 40 statements about themselves, from 1 (strongly disagree) to 5 (strongly agree). These are real\n"
        "answers: raw data of openpsychometrics.org on items of the International Personality Item Pool.",
        "dfact.data.examples.questionnaires:write_answers",
        _ANSWERS,
        (
            Step("Import the answers; an empty questionnaire is left out:", _IMPORT_ANSWERS),
            Step(_FACTORS, f"dfact fit icqf {FOLDER}/answers.zarr {FOLDER}/factors4.model --components 4"),
            Step(
                "Write the factors of all participants as a table:",
                f"dfact export {FOLDER}/factors4.model {FOLDER}/factors.csv --table factors",
            ),
        ),
        f"dfact fit icqf {FOLDER}/answers.zarr six.model --components 6",
    ),
    "spss": Demo(
        "psychometrics",
        "the same questionnaire as an SPSS file",
        "The same questionnaire as an SPSS file, with the wording, the labels and the missing codes in it.",
        "dfact.data.examples.questionnaires:write_spss_files",
        {
            "thesis.sav": "the answers as an SPSS file",
            "scales.csv": "the scales and keys of the items",
            "wellbeing.sav": "a short questionnaire of the guide on import",
        },
        (
            Step(
                "Import the answers:",
                f"dfact import {FOLDER}/thesis.sav {FOLDER}/thesis.zarr --items 'AS*' --items 'SC*' --items 'AD*' --items 'DO*' "
                f"--id-column person --confounder age --confounder gender --dictionary {FOLDER}/scales.csv",
            ),
            Step("Print what is known of the items of one scale:", f"dfact info {FOLDER}/thesis.zarr --items 'AS*'", writes=False),
            Step("Describe the scales and the items:", f"dfact describe {FOLDER}/thesis.zarr", writes=False),
        ),
        f"dfact select fa {FOLDER}/thesis.zarr -k 1-8 --correlation polychoric --plot scree.png",
        extra="tables",
        modules=("pyreadstat",),
        slices=("formats", "questionnaires"),
    ),
    "ratings": Demo(
        "expectiles",
        "ratings of films, half of them unknown",
        "Simulated ratings of films: 120 users rated half of 40 films, from 0.5 to 5 stars.",
        "dfact.data.examples.arrays:write_ratings",
        {"ratings.csv": "a line for each rating: user, film, stars"},
        (
            Step(
                "Import the ratings; films that a user did not rate are missing:",
                f"dfact import-triplets {FOLDER}/ratings.csv {FOLDER}/ratings.zarr --row user --column film --value stars",
            ),
            Step(
                "Fit three expectiles in the same passes over the data, from a low prediction to a high one:",
                f"dfact fit emf {FOLDER}/ratings.zarr {FOLDER}/all.model -k 3 --ridge 0.1 --tau 0.1,0.5,0.9",
            ),
        ),
        f"dfact select emf {FOLDER}/ratings.zarr ratings.model -k 2-5 --ridge 0.1,1 --tau 0.1,0.5 --bins 0,2.5,4,5.5 --seed 0",
    ),
    "measurements": Demo(
        "pca",
        "measurements of the air, some of them missing",
        "Simulated measurements of the air on 300 days: twelve columns in different units, 6% of the entries missing.",
        "dfact.data.examples.arrays:write_air",
        {"air.csv": "a line for each day, a column for each measurement", "later.csv": "30 further days"},
        (
            Step(
                "Import the measurements:",
                f"dfact import {FOLDER}/air.csv {FOLDER}/air.zarr --id-column day --items 'NO,NO2,CO,soot,SO2,PM10,PM2.5' "
                "--items 'ozone,temperature,humidity,wind,sunshine'",
            ),
            Step(
                "Fit three principal components of the standardized columns; missing entries are taken by expectation:",
                f"dfact fit pca {FOLDER}/air.zarr {FOLDER}/air.model -k 3 --scale standard",
            ),
            Step("Write the scores of all days as a table:", f"dfact export {FOLDER}/air.model {FOLDER}/scores.csv --table factors"),
        ),
        f"dfact select pca {FOLDER}/air.zarr best.model -k 1-8 --scale standard --plot scree.png",
    ),
    "tensor": Demo(
        "tensors",
        "spectra of samples, a tensor of three modes",
        "Simulated fluorescence of twenty samples of three substances: samples × emission × excitation.",
        "dfact.data.examples.arrays:write_spectra",
        {"spectra.npz": "the spectra, an array of 20 × 60 × 30"},
        (
            Step("Import the tensor:", f"dfact import-array {FOLDER}/spectra.npz {FOLDER}/spectra.zarr --object X"),
            Step(
                "Choose the number of components, up to six, by replicability and core consistency:",
                f"dfact select cp {FOLDER}/spectra.zarr {FOLDER}/spectra.model -k 6 --starts 2 --seed 0",
            ),
        ),
        f"dfact fit cp {FOLDER}/spectra.zarr three.model -k 3 --lam 1e-6 --init svd --seed 0 --plot modes.png",
    ),
    "nmf": Demo(
        "nmf",
        "words in documents, for topics",
        "Simulated documents: how often each of 40 words occurs in 300 documents, which have one topic or mix a few of four.",
        "dfact.data.examples.arrays:write_documents",
        {"documents.csv": "a line for each document, with the count of each word"},
        (
            Step(
                "Import the counts:",
                f"dfact import {FOLDER}/documents.csv {FOLDER}/topics.zarr --id-column document --items '*'",
            ),
            Step(
                "Fit four topics by the Kullback-Leibler divergence, which suits counts:",
                f"dfact fit nmf {FOLDER}/topics.zarr {FOLDER}/topics.model -k 4 --loss kullback-leibler",
            ),
            Step(
                "Write the topics of all documents as a table:", f"dfact export {FOLDER}/topics.model {FOLDER}/topics.csv --table factors"
            ),
        ),
        f"dfact select nmf {FOLDER}/topics.zarr best.model -k 3-5 --loss kullback-leibler --hold-out entries --seed 0",
    ),
    "diary": Demo(
        "import",
        "a diary with answers in words, exports of REDCap and UK Biobank",
        "A diary with answers in words, and the other tables of the guide on import.",
        "dfact.data.examples.tables:write_tables",
        {
            "diary.csv": "a diary of sleep",
            "phq9.csv": "a questionnaire, and gad7.csv another one of partly the same people",
            "records.csv": "a longitudinal export of REDCap, with its dictionary.csv",
            "biobank.tsv": "columns of UK Biobank, with fields.tsv and codings.tsv",
        },
        (
            Step(
                "Import the diary, with the order of the words from the lowest to the highest:",
                f"dfact import {FOLDER}/diary.csv {FOLDER}/diary.zarr --items 'sleep*,calm' --id-column person "
                "--levels 'sleep*: badly<fairly<well' --levels 'calm: no<yes'",
            ),
            Step(
                "Import an export of REDCap as a tensor of records × items × events:",
                f"dfact import {FOLDER}/records.csv {FOLDER}/visits.zarr --dictionary {FOLDER}/dictionary.csv --confounder age "
                "--third-mode events",
            ),
        ),
        f"dfact info {FOLDER}/diary.zarr",
        companions=("gad7.csv", "dictionary.csv", "fields.tsv", "codings.tsv"),
        slices=("formats",),
    ),
    "updates": Demo(
        "updates",
        "the questionnaire in three waves, added to a model one after the other",
        "The same questionnaire in three waves of other people. In the third wave two items have another wording (simulated).",
        "dfact.data.examples.questionnaires:write_waves",
        {
            "wave1.csv": "the answers of the first 700 people",
            "wave2.csv": "those of 150 people who came later",
            "wave3.csv": "those of the others, who read another wording of AS3 and DO8",
            "items.csv": "the texts, scales and keys of the items",
        },
        (
            *(Step(f"Import wave {i}:", _IMPORT_WAVE.format(i=i)) for i in (1, 2, 3)),
            Step("Fit the first wave:", f"dfact fit icqf {FOLDER}/wave1.zarr {FOLDER}/growing.model --components 4"),
            Step(
                "Add the second wave, without the answers of the first:",
                f"dfact update {FOLDER}/growing.model {FOLDER}/wave2.zarr",
                writes=False,
            ),
        ),
        f"dfact update {FOLDER}/growing.model {FOLDER}/wave3.zarr --check",
    ),
    "cluster": Demo(
        "clusters",
        "the questionnaire on a Dask cluster of two processes",
        "The questionnaire, fitted on a Dask cluster of two processes on this machine.",
        "dfact.data.examples.questionnaires:write_answers",
        _ANSWERS | {"cluster.py": "the script that starts the cluster"},
        (
            Step("Import the answers:", _IMPORT_ANSWERS),
            Step("Fit them on this machine:", f"dfact fit icqf {FOLDER}/answers.zarr {FOLDER}/alone.model --components 4"),
            Step("Start a cluster and fit them there, with the same result:", f"python {FOLDER}/cluster.py", writes=False),
        ),
        "dask scheduler --host 127.0.0.1",
        scripts={"cluster.py": CLUSTER_SCRIPT},
    ),
} | {kind: load(name) for each in INSTALLED for kind, name in each.demos.items()}
"""The demos by the name of their kind; the first is the default."""
