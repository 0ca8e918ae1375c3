"""S3: bucket creation and error messages."""
