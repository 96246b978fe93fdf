"""What happens in a cache, as it happens."""
