"""Opening captures as one trace, choosing a part of it, and what a timeline of it shows."""
