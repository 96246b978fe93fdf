"""Compile caches in S3 buckets. Only what is reached by an `s3://` root imports anything of here but `url`."""
