"""The persistent compile cache: layout, states, locks, eviction, statistics."""
