"""Telemetry pages: their layout, writer and reader."""
