"""Exploratory factor analysis: FactorAnalysis."""
