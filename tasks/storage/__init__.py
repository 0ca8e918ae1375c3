"""What keeps bytes safe: DVC remotes, digests, and the mirror of checkpoints on S3."""
