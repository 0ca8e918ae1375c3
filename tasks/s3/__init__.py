"""S3: one client with error translation, shared objects, and bucket creation."""
