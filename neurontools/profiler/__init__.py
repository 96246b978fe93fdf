"""Profiles: capture, tables, queries, exports."""
