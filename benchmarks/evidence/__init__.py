"""Calibration of what dfact prints: tests, flags, intervals and rules, on simulated data whose truth is known.

    python -m benchmarks.evidence                    all topics
    python -m benchmarks.evidence items --runs 100   one topic, with 100 simulated datasets for each condition
    python -m benchmarks.evidence --write            only write the guide from the stored results

A topic is a module of this package with the constants

    TITLE          heading of its section in the guide
    INTRODUCTION   what the section says above its table, in Markdown
    EXPERIMENTS    list of :class:`~benchmarks.evidence.calibration.Experiment`

The results of a topic are stored in ``results/TOPIC.json``, and ``dfact/guides/evidence.md`` is written from those of all topics.
The exit code is 1 if a measured rate lies outside its bar.
"""
