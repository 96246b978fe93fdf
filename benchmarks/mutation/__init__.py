"""Mutation testing: small faults are put into the source, one at a time, and the tests have to find them."""
