"""Speed, measured side by side in one run. `python benchmarks/run.py` runs everything and writes RESULTS.md."""
