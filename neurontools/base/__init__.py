"""Leaf package: units, text, files, locks and /proc, for every other package. It imports only the standard library."""
