"""Stored graphs, ours and HLO modules, read into the same facts."""
