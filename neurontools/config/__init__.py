"""Files that people write: one reader of YAML and JSON that knows lines, and the user's config.yaml."""
