"""A bucket for the servers: `python -P -m tasks.s3.bucket NAME`, with endpoint and keys from the environment."""

from __future__ import annotations

import sys


def make_bucket(name: str) -> None:
    """Make the bucket, with versions kept, unless it is there."""
    import boto3
    from botocore.exceptions import ClientError

    store = boto3.client("s3")
    try:
        store.create_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    store.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})


if __name__ == "__main__":
    make_bucket(sys.argv[1])
