"""The cache browser."""
