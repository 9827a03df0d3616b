"""Golden figures of small fits, with the recipes that make them."""
