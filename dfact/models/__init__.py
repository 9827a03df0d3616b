"""The models: a folder for each family, and what all families share.

A family holds its problem, the steps of its passes, its solvers and its estimators, and imports no other family. Shared are
``estimator`` (the base class), ``parameters``, ``traits``, ``fitted_schema``, ``persistence``, ``provenance``,
``lazy_transform`` and ``catalogue``, the one list of models. Models import linalg and the rooms below it, and reach data only
through a session.
"""
