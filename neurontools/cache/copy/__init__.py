"""Copies of entries between directories, buckets and archives."""
