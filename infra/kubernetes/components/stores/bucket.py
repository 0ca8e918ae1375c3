"""Make a bucket where there is none: `python bucket.py NAME`, with the endpoint and keys of the environment."""

import sys

import boto3
from botocore.exceptions import ClientError


def make(name: str) -> None:
    """Make the bucket, with versions kept, unless it is there."""
    store = boto3.client("s3")
    try:
        store.create_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in ("BucketAlreadyOwnedByYou", "BucketAlreadyExists"):
            raise
    store.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})


if __name__ == "__main__":
    make(sys.argv[1])
