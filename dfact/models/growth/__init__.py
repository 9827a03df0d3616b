"""Models that grow: new rows are added to a fitted model by their sums, without the rows that it has seen.

An estimator that grows inherits :class:`~dfact.models.growth.estimator.Growing` and fulfils its protocol: ``fit`` keeps ``sums_`` and
ends with ``_begin_growth``; ``_prepare_update`` checks new rows; ``_grow`` is a generator of passes over them. ``baseline`` has the
figures of rows that the last pass of a fit adds up, ``drift`` compares those of new rows with them, and ``record`` is what a model
knows of its growth.
"""
