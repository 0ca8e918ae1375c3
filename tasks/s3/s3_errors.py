"""What S3 refuses for good: error codes in words, for whoever reads a line of it."""

from __future__ import annotations

from collections.abc import Mapping

NO_CREDENTIALS = "no credentials; set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
REFUSALS: Mapping[str, str] = {
    "403": "access is denied",
    "AccessDenied": "access is denied",
    "AllAccessDisabled": "access is denied",
    "InvalidAccessKeyId": "the access key is not known",
    "SignatureDoesNotMatch": "the secret key does not fit the access key",
    "ExpiredToken": "the session token has expired",
    "404": "not there",
    "NoSuchKey": "not there",
    "NoSuchBucket": "no such bucket",
    "InvalidBucketName": "no name for a bucket",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION",
}
