"""Textual apps: the live dashboard and the profile viewer."""
