"""Telemetry pages: the bytes, and who writes and reads them."""
