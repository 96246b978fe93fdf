"""The profile viewer."""
