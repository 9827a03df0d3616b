"""Attacks on sites with the default policy, each counted by the persons it finds."""
