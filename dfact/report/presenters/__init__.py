"""Texts and plots of each family of models; :mod:`dfact.report.presenters.base` finds the presenter of a model."""
