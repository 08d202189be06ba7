"""Object stores in processes of their own on this machine: one speaks S3, one is Google's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tests.conftest import free_port

BUCKET = "accordion"
_GCS_SERVER = """
import sys
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket=sys.argv[2])
server.start()
print("ready", flush=True)
sys.stdin.read()
server.stop()
"""
_S3_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """The environment with which s3fs finds it; it holds an empty bucket."""
    environment = {**os.environ, "NO_PROXY": "127.0.0.1"}
    with subprocess.Popen(
        [sys.executable, "-c", _S3_SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as server:
        port = server.stdout.readline().strip()
        settings = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "NO_PROXY": "127.0.0.1",
        }
        try:
            make_bucket(settings)
            yield settings
        finally:
            server.stdin.close()


def make_bucket(settings: Mapping[str, str]) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=settings["AWS_ENDPOINT_URL"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket=BUCKET)


@contextmanager
def gcs_server() -> Iterator[Mapping[str, str]]:
    """The environment with which gcsfs finds an emulator; it holds an empty bucket."""
    port = free_port()
    with subprocess.Popen(
        [sys.executable, "-c", _GCS_SERVER, str(port), BUCKET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        assert server.stdout.readline() == "ready\n"
        # gcsfs would ask Google for the kind of each bucket.
        kind = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        try:
            yield {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", **kind}
        finally:
            server.stdin.close()
