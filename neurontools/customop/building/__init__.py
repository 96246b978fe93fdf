"""From sources to a library: compilers, freshness, messages."""
