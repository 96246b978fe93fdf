"""From sources to a library: compilers, what is out of date, messages."""
