"""Psychometrics: items and scales of questionnaires, beside the models that explain them.

Imports models and everything below them. Each public function has a module of its own.

    reliability      describe: distributions of items, reliability of scales, adequacy for a factor analysis
    answer_sums      the sums that a description needs, and their memory plan
    scale_figures    the figures of a scale, and of all items together
"""
