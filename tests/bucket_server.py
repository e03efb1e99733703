"""An S3 server that verifies signatures, as a process on loopback."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.settings.settings import Settings

BUCKET = "results"
NO_BUCKET = "nowhere"
"""A bucket that may be used and does not exist."""
REGION = "eu-central-1"
OPEN_CALLS = 3
"""How many calls are let in unsigned: those that make a user, its key and its rights."""
START_S = 60.0
_RUNNING = re.compile(r"Running on (http://[0-9.:]+)\s")
"""What it writes to stderr once it listens, before it logs its requests there."""


@dataclass(frozen=True, slots=True)
class BucketServer:
    """A bucket, who may use it, and a look into it past the code under test."""

    location: Settings

    def client(self) -> Any:
        """Another program's client of the same bucket."""
        found = self.location
        return _client("s3", found.s3_endpoint or "", found.s3_access_key_id, found.s3_secret_access_key)

    def objects(self) -> dict[str, int]:
        """What lies in the bucket: sizes in bytes by key."""
        found = self.client().list_objects_v2(Bucket=BUCKET)
        return {each["Key"]: each["Size"] for each in found.get("Contents", ())}

    def empty(self) -> None:
        """Remove everything."""
        for key in self.objects():
            self.client().delete_object(Bucket=BUCKET, Key=key)

    def settings(self) -> dict[str, str]:
        """The environment of a service that keeps its results here."""
        return {
            "ASSET_STORE": "s3",
            "S3_BUCKET": self.location.s3_bucket,
            "S3_REGION": self.location.s3_region,
            "S3_ENDPOINT": self.location.s3_endpoint or "",
            "S3_ACCESS_KEY_ID": self.location.s3_access_key_id,
            "S3_SECRET_ACCESS_KEY": self.location.s3_secret_access_key,
        }


@contextmanager
def bucket_server() -> Iterator[BucketServer]:
    """Start a server with one bucket, and a user who may do what the service needs in it, and nothing else."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"],
            env={
                **os.environ,
                "INITIAL_NO_AUTH_ACTION_COUNT": str(OPEN_CALLS),
                "S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true",
            },
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
        try:
            deadline = time.monotonic() + START_S
            while (found := _RUNNING.search(os.pread(said.fileno(), 4096, 0).decode())) is None:
                assert process.poll() is None, "the bucket's server has ended"
                assert time.monotonic() < deadline, "the bucket's server does not listen"
                time.sleep(0.02)
            yield BucketServer(_bucket_at(found[1]))
        finally:
            process.terminate()
            process.wait(START_S)


def _bucket_at(url: str) -> Settings:
    iam = _client("iam", url, "anonymous", "none")
    iam.create_user(UserName="holdfast")
    key = iam.create_access_key(UserName="holdfast")["AccessKey"]
    needed = ["PutObject", "GetObject", "DeleteObject", "AbortMultipartUpload", "ListBucket", "CreateBucket"]
    places = [f"arn:aws:s3:::{name}{end}" for name in (BUCKET, NO_BUCKET) for end in ("", "/*")]
    rights = {"Effect": "Allow", "Action": [f"s3:{each}" for each in needed], "Resource": places}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [rights]})
    iam.put_user_policy(UserName="holdfast", PolicyName="results", PolicyDocument=policy)
    key_id, secret = key["AccessKeyId"], key["SecretAccessKey"]
    s3 = _client("s3", url, key_id, secret)
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
    return Settings(
        s3_bucket=BUCKET, s3_region=REGION, s3_endpoint=url, s3_access_key_id=key_id, s3_secret_access_key=secret
    )


def _client(service: str, url: str, key_id: str, secret: str) -> Any:
    # Imported late: it takes its time, and most sessions have no bucket.
    import boto3  # type: ignore[import-untyped]  # it brings no types along

    return boto3.client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
    )
