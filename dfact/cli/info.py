"""``dfact info``."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from math import isnan, prod
from typing import TYPE_CHECKING, Any

import click

from dfact.cli.options import example, json_option, list_option, read_dataset, wants_json
from dfact.cli.types import InputLocation
from dfact.errors import DataError
from dfact.storage.location import Location, absolute

if TYPE_CHECKING:
    import pandas as pd

    from dfact.data.codebook import Codebook
    from dfact.data.confounders import PlausibleRange
    from dfact.data.dataset import Dataset, Genotypes, StoredConfounder

_QUANTILES = {"min": 0.0, "5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95, "max": 1.0}


@click.command(epilog=example("dfact info dfact-demo/answers.zarr --items 'AS*'"))
@click.argument("path", type=InputLocation())
@click.option(
    "-n",
    "--top",
    type=click.IntRange(1),
    show_default="5, and no SNPs",
    help="Number of items listed for each factor or class of a model, or from the codebook of a dataset.",
)
@list_option(
    "--items",
    "Items of a dataset whose wording, levels and missing codes are listed: names or patterns such as 'Q*'; repeatable or separated "
    "by commas.",
    metavar="NAMES",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read all of it, and check that every chunk and attribute is the one that was written: after a copy or a restore, for example.",
)
@json_option
def info(path: Location, top: int | None, items: list[str], *, verify: bool) -> None:
    """Print a summary of a dataset or a model.

    With --json, all items are listed.
    """
    from dfact.catalogue import KIND
    from dfact.storage.groups import kind_at

    is_model = kind_at(path) == KIND
    verified = _verify(path, is_model=is_model) if verify else None
    if wants_json():
        _print_document(path, verified, is_model=is_model)
        return
    if is_model and items:
        raise click.UsageError("--items applies to datasets; remove it, or list more items of a model with --top.")
    click.echo(stored_model_text(path, top) if is_model else dataset_text(read_dataset(path), top or 5, items))
    if verified is not None:
        click.echo(f"\nverified: {verified}")


def _verify(path: Location, *, is_model: bool) -> str:
    """Read all of a dataset or a model; raise StoreError unless it is what was written, and state what was compared."""
    if not is_model:
        from dfact.data.stored_dataset import verify_dataset

        return verify_dataset(absolute(path))
    from dfact.models.persistence import load_model

    load_model(path)
    return "every array and attribute has its digest"


def _print_document(path: Location, verified: str | None, *, is_model: bool) -> None:
    from dfact.export.documents import dataset_document, model_document, to_json

    if not is_model:
        click.echo(to_json("dataset", dataset_document(read_dataset(path)) | {"verified": verified}))
        return
    from dfact.models.persistence import load_model, saved_versions

    extra = {"location": path, "versions": saved_versions(path), "verified": verified}
    click.echo(to_json("model", extra | model_document(load_model(path))))


def dataset_text(dataset: "Dataset", top: int = 5, patterns: Sequence[str] = ()) -> str:
    """Describe a dataset with the first ``top`` items of its codebook, or those whose names match a pattern."""
    from dfact.data.dataset import words_of
    from dfact.data.weights import describe_weights
    from dfact.export.tables import elided
    from dfact.text import align_columns

    n, *others = dataset.shape
    statistics, labels = dataset.statistics, [str(label) for label in dataset.column_labels]
    low, high = dataset.valid_range[:, 0] + dataset.offset, dataset.valid_range[:, 1] + dataset.offset
    worst, n_empty_items = int(statistics.observed.argmin()), int((statistics.observed == 0).sum())
    missing = 1 - statistics.observed[worst] / n
    words = words_of(dataset)
    rows, columns, entries = words.rows, words.columns, words.entries
    at_most = f", at most {missing:.2%} of {words.a_column} ({labels[worst]})" if missing > 0 and len(others) == 1 else ""
    empty = (
        f"; {statistics.n_empty_rows} {words.row}(s) and {n_empty_items} {words.column}(s) without any"
        if statistics.n_empty_rows or n_empty_items
        else ""
    )
    code = "" if dataset.missing_code is None else f", {dataset.missing_code} = missing"
    shifted = (
        ""
        if not dataset.offset.any()
        else f", stored as {_format_range(dataset.valid_range[:, 0], dataset.valid_range[:, 1], words.columns)}"
    )
    lines = [
        ("dataset", str(dataset.path)),
        ("size", f"{n} {rows} × {' × '.join(map(str, others))} {columns}, {dataset.dtype}{code}"),
        ("missing", f"{dataset.missing_rate:.2%} of the {entries}{at_most}{empty}"),
        ("range", f"{entries} {_format_range(low, high, columns)}{shifted}"),
        (columns, elided(labels)),
        *((f"mode {mode}", elided(list(map(str, names)))) for mode, names in enumerate(dataset.mode_labels, start=3) if names is not None),
        (rows, _row_labels(dataset)),
    ]
    if dataset.genotypes.variants is not None:
        lines += _genotype_lines(dataset.genotypes.variants, dataset.genotypes)
    for i, confounder in enumerate(dataset.stored_confounders()):
        lines.append(("" if i else "confounders", _confounder(confounder, dataset.confounder_ranges.get(confounder.name))))
    if dataset.weights is not None:
        lines.append(("weights", describe_weights(dataset.weights)))
    if dataset.replicate_weights is not None:
        lines.append(("", f"{dataset.replicate_weights.label}, {dataset.replicate_weights.df} degrees of freedom"))
    lines += [("fingerprint", dataset.fingerprint), ("storage", _storage(dataset))]
    if dataset.codebook is None and patterns:
        raise DataError(f"{dataset.path} has no codebook, expected one for --items; import it from a file with labels, or a dictionary")
    if dataset.codebook is None:
        return align_columns(lines)
    lines.append(("codebook", _codebook_line(dataset.codebook, words.column)))
    return "\n\n".join(filter(None, [align_columns(lines), items_text(dataset.codebook, top, patterns)]))


def _genotype_lines(variants: "pd.DataFrame", genotypes: "Genotypes") -> list[tuple[str, str]]:
    """Describe the variants of genotypes and the populations of the individuals."""
    from dfact.export.tables import elided

    chromosomes = variants["chromosome"].unique()
    dropped = f"; {genotypes.dropped_variants} dropped" if genotypes.dropped_variants else ""
    counted, other = variants[["A2", "A1"]].iloc[0]
    counts = f"genotypes count A2 ({counted} of {variants['name'].iloc[0]}), not A1 ({other})"
    lines = [("variants", f"on {len(chromosomes)} chromosome(s) ({elided(list(map(str, chromosomes)))}){dropped}; {counts}")]
    if genotypes.population is not None:
        known = [f"{level} ({count})" for level, count in genotypes.population.value_counts(dropna=True).items()]
        lines.append(("population", f"{elided(known)}, {int(genotypes.population.isna().sum())} unknown"))
    return lines


def _codebook_line(codebook: "Codebook", column: str) -> str:
    n_levels, n_coded = (sum(map(bool, values)) for values in zip(*((item.levels, item.missing) for item in codebook), strict=True))
    described = f"{len(codebook.texts)} {column}(s) with wording, {n_levels} with levels, {n_coded} with missing codes"
    return f"{described}; fingerprint {codebook.fingerprint}"


def items_text(codebook: "Codebook", top: int, patterns: Sequence[str] = ()) -> str:
    """Describe the first ``top`` items with a wording, levels or changes, or all whose names match a pattern.

    Levels and files that equal the previous item's are not repeated.
    """
    from dfact.text import align_columns, escape_control

    if patterns:
        shown = items = [item for item in codebook if any(fnmatchcase(item.name, pattern) for pattern in patterns)]
        if not items:
            expected = f"expected names or patterns such as {codebook.items[0].name!r}"
            raise DataError(f"no item matches {', '.join(map(repr, patterns))}, {expected}")
    else:
        items = [item for item in codebook if item.wording or item.levels or item.changes]
        shown = items[:top]
    if not shown:
        return ""
    lines: list[tuple[str, str]] = []
    for before, item in zip([None, *shown], shown, strict=False):
        repeated = before is not None and before.levels == item.levels
        of_levels = (item.levels[0][0], item.levels[-1][0]) if item.levels else None
        details = [
            ("levels", "as above" if repeated and item.levels else item.levels_text),
            ("valid", "" if item.valid_range is None or item.valid_range == of_levels else "{:g} to {:g}".format(*item.valid_range)),
            ("missing", item.missing_text),
            ("scale", item.scale + ", key -1" * (item.key < 0)),
            ("changed", ", ".join(item.changes)),
            ("from", "" if before is not None and before.source == item.source else item.source),
        ]
        lines.append((escape_control(item.name) or " ", item.wording))
        lines += [("", f"  {name:<8} {text}") for name, text in details if text]
    rest = len(items) - len(shown)
    more = f"\n… {rest} more; --items NAMES lists items by name or pattern" if rest else ""
    return align_columns(lines) + more


def _format_range(low: Any, high: Any, columns: str) -> str:
    """Format the range of all columns, and note if columns differ."""
    differ = (low != low[0]).any() or (high != high[0]).any()
    return f"{low.min():g} to {high.max():g}{f' (differs between {columns})' if differ else ''}"


def _row_labels(dataset: "Dataset") -> str:
    from dfact.data.dataset import words_of
    from dfact.export.tables import elided

    labels = dataset.label_source
    shown = "numbered from 0" if labels is None else f"{elided([str(labels[i]) for i in range(min(3, dataset.shape[0]))])}, …"
    return (
        f"{shown}; {dataset.dropped_rows} without any {words_of(dataset).entries.removesuffix('s')} left out"
        if dataset.dropped_rows
        else shown
    )


def _confounder(confounder: "StoredConfounder", limits: "PlausibleRange | None") -> str:
    import numpy as np

    from dfact.export.tables import elided

    name, values, levels = confounder
    if levels is not None:
        counts = np.bincount(values + 1, minlength=len(levels) + 1).tolist()
        shown = elided([f"{level} ({count})" for level, count in zip(levels, counts[1:], strict=True)])
        return f"{name}: categorical, {shown}, {counts[0]} missing"
    known = values[~np.isnan(values)]
    numbers = np.quantile(known, list(_QUANTILES.values())) if known.size else np.full(len(_QUANTILES), np.nan)
    quantiles = ", ".join(f"{label} {value:g}" for label, value in zip(_QUANTILES, numbers, strict=True))
    outside = "" if limits is None else f" ({limits.n_outside} outside {limits.low:g} to {limits.high:g})"
    mean = known.mean() if known.size else np.nan
    return f"{name}: continuous, {quantiles}, mean {mean:g}, {len(values) - len(known)} missing{outside}"


def _storage(dataset: "Dataset") -> str:
    from dfact.data.sources.sparse import StoredCSRSource
    from dfact.storage.groups import stored_size
    from dfact.text import format_bytes

    source: Any = dataset.source  # a Zarr source, as the dataset was opened from a store
    on_disk = 0 if dataset.path is None else stored_size(dataset.path)
    if isinstance(source, StoredCSRSource):
        array, entries, in_memory = source.data, source.data.shape[0], source.shape[0] * source.row_bytes
        implicit = "missing" if isnan(source.implicit_value) else "0"
        kind = f"CSR, {entries} entries stored ({entries / prod(source.shape):.2%}), implicit entries = {implicit}, "
    else:
        array, in_memory, kind = source.array, source.array.nbytes, ""
    chunk = " × ".join(map(str, array.chunks))
    return f"{kind}{format_bytes(on_disk)} in the store, {format_bytes(in_memory)} in memory, {array.nchunks} chunk(s) of {chunk}"


def stored_model_text(path: Location, top: int | None = None) -> str:
    """Describe a model with its parameters and versions."""
    from dfact.models.persistence import load_model, saved_versions
    from dfact.report.presenters.base import environments_text, model_text

    model = load_model(path)
    parameters = {key: value for key, value in model.get_params().items() if key not in ("executor", "callbacks")}
    lines = (
        ("parameters", ", ".join(f"{key}={'array' if hasattr(value, 'shape') else repr(value)}" for key, value in parameters.items())),
        ("data", f"fingerprint {model.fingerprint_}" if model.fingerprint_ else "no fingerprint: not an unchanged stored dataset"),
        ("processors", environments_text(model)),
        ("written by", ", ".join(f"{package} {version}" for package, version in saved_versions(path).items())),
    )
    return model_text(model, top, extra=lines)
