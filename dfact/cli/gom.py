"""Options shared by the commands that fit a grade of membership."""

import click

from dfact.cli.options import computing_options, option_group, overwrite_option, plot_option

gom_options = option_group(
    click.option(
        "--method",
        type=click.Choice(["crsc", "srsc", "ssc", "srm"]),
        default="crsc",
        help="Search for pure subjects: cone or simplex regularized spectral clustering (crsc, srsc), "
        "simplex spectral clustering without regularization (ssc), or simplex of the response matrix (srm).",
    ),
    click.option(
        "--vertex-hunting",
        type=click.Choice(["kmeans", "svm-cone"]),
        default="kmeans",
        help="Method by which crsc finds the corners of the cone: K-means or a one-class SVM.",
    ),
    click.option(
        "--tau", type=float, help="Regularization of crsc and srsc.", show_default="highest response × the longer side of the data"
    ),
    click.option("--levels", "n_levels", type=float, help="Highest possible response.", show_default="highest response in the data"),
    click.option("--seed", "random_state", type=int, help="Seed of the K-means starts."),
    computing_options,
    plot_option,
    overwrite_option,
)
