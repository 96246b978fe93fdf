"""Moving entries between roots, directories and buckets."""
