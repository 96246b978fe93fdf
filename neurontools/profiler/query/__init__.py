"""SQL over profiles."""
