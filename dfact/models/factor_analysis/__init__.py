"""factor_analysis."""
