"""The section of a report on rows that were added to a model."""

from dfact.export.growth import drifted
from dfact.models.estimator import Factorization
from dfact.report.document import Block, Section, Text, make_table
from dfact.report.presenters.base import Presenter


def growth(presenter: Presenter[Factorization]) -> Section | None:
    """State how many rows were added since the last complete fit, what such a fit would gain, and how the last rows differ."""
    record = getattr(presenter.model, "growth_", None)
    if record is None or record.drift is None:
        return None
    words, drift = presenter.words, record.drift
    table = drift.table(presenter.model.column_labels_, presenter.names)
    tests = (
        f"The {drift.rows:.0f} {words.rows} of the last update were compared with those before: the mean residual and the missing share of "
        f"each {words.item}, the mean and the variance of each of the {words.components}. If they are a sample of the same population, any "
        f"of the {int(table['p'].notna().sum())} tests rejects with probability {drift.level:g}."
    )
    blocks: list[Block] = [Text(f"{record.describe()}."), Text(tests)]
    shown = drifted(table)
    if len(shown):
        caption = "What differs: means in standard deviations, missing shares as differences, variances as logarithms of their ratio"
        shown = shown.set_index("of").rename(columns={"adjusted_p": "adjusted p"}).rename_axis("of")
        blocks.append(make_table(shown, caption, formats={"difference": "{:+.3f}", "adjusted p": "{:.2g}"}))
    else:
        blocks.append(Text("None rejects."))
    return Section("growth", "Rows that were added", blocks)
