"""Entries in an archive: export and import."""
