"""Processes that compile, read, prune, verify and copy one compile cache, and are killed while they do."""
