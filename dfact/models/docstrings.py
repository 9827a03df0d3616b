"""Docstrings of estimators, completed by the entries that all share."""

from inspect import signature

from dfact.text import add_entries, section_entries


def with_shared_entries(cls: type, base: type) -> str | None:
    """Return the docstring of an estimator with what ``base`` documents for all, and the estimator does not itself."""
    docstring, shared = cls.__doc__, base.__doc__
    if docstring is None or shared is None:  # python -OO
        return docstring
    for title in ("Parameters", "Attributes"):
        entries = section_entries(docstring, title)
        if entries:
            described = {name for names in entries for name in names.split(", ")}
            absent = {names: entry for names, entry in section_entries(shared, title).items() if described.isdisjoint(names.split(", "))}
            accepted = absent if title == "Attributes" else signature(cls).parameters
            docstring = add_entries(docstring, title, [entry for name, entry in absent.items() if name in accepted])
    return docstring
