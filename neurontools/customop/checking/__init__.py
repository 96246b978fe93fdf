"""Finding wrong operators by trying them."""
