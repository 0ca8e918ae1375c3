"""S3: one client with error translation, shared objects, checksums, and bucket creation."""
