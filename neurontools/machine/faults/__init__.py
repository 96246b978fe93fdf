"""Faults on demand: what can go wrong with a machine, when it does, and whom it hits."""
