"""Create the bucket of the servers: `python -P -m tasks.s3.bucket NAME`, with the usual AWS variables."""

from __future__ import annotations

import sys

from tasks.s3.client import S3Client


def make_bucket(name: str) -> None:
    """Create a bucket with versioning, unless it exists."""
    from botocore.exceptions import ClientError

    client = S3Client().boto
    try:
        client.create_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})


if __name__ == "__main__":
    make_bucket(sys.argv[1])
