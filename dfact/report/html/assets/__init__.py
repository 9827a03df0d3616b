"""The template of the HTML report, its style and its script."""
