"""Diagnostics of a run: compile lines, live explanations, metrics, graph files, analyses."""
