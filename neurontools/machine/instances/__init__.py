"""Instance types: the catalogue, its YAML files and their schema, the compiled form."""
