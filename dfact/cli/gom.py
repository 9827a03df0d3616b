"""The options of a grade of membership, for all commands that fit one."""

import click

from dfact.cli.options import computing_options, option_group, overwrite_option, plot_option

gom_options = option_group(
    click.option(
        "--method",
        type=click.Choice(["crsc", "srsc", "ssc", "srm"]),
        default="crsc",
        help="How pure subjects are found: by the cone or the simplex of regularised singular vectors, by plain ones, or among the rows.",
    ),
    click.option(
        "--vertex-hunting",
        type=click.Choice(["kmeans", "svm-cone"]),
        default="kmeans",
        help="How crsc finds the cone's corners: K-means, or a one-class SVM.",
    ),
    click.option(
        "--tau", type=float, help="Regularisation of crsc and srsc.", show_default="highest response × the longer side of the data"
    ),
    click.option("--levels", "n_levels", type=float, help="The highest possible response.", show_default="the highest there is"),
    click.option("--seed", "random_state", type=int, help="Seed of the starts of K-means."),
    computing_options,
    plot_option,
    overwrite_option,
)
