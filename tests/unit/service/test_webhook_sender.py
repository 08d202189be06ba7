"""One request of a webhook: where it goes, how long it may take, and what its response means."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from accordion_service.access import host_lookup
from accordion_service.access.host_lookup import (
    MAX_LOOKUPS_PER_USER,
    LookupFailed,
    LookupPostponed,
    look_up_host,
)
from accordion_service.domain.webhooks.targets import Address
from accordion_service.scheduler.webhook_sender import WebhookSender
from accordion_service.store.writes.delivery_queue import AttemptOutcome
from tests.api.webhook_receiver import LOOPBACK, Receiver, run_receiver

NETWORKS = (ip_network(LOOPBACK),)
HERE = ip_address("127.0.0.1")
SHORT_S = 0.3
"""Limit of a request to a receiver that hangs."""


def send(sender: WebhookSender, url: str) -> AttemptOutcome:
    return sender.send(url, headers={"webhook-id": "m"}, body=b'{"a": 1}', user="ada")


def always(*addresses: str) -> host_lookup.HostLookup:
    found: list[Address] = [ip_address(text) for text in addresses]
    return lambda _host, _timeout_s, _user: found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with run_receiver() as receiver:
        yield receiver


def test_the_request_goes_to_the_checked_address_with_the_name_as_host(
    receiver: Receiver,
) -> None:
    asked: list[str] = []

    def look_up(host: str, _timeout_s: float, _user: str) -> list[Address]:
        asked.append(host)
        return [HERE] if len(asked) == 1 else [ip_address("192.0.2.1")]

    sender = WebhookSender(NETWORKS, look_up=look_up)
    outcome = send(sender, f"http://hooks.test:{receiver.port}/a?b=c")
    assert outcome == AttemptOutcome(response_status=204)
    [request] = receiver.received
    assert asked == ["hooks.test"], "the name is resolved once"
    assert request.headers["host"] == f"hooks.test:{receiver.port}"
    assert (request.path, request.body) == ("/a?b=c", b'{"a": 1}')
    assert request.headers["webhook-id"] == "m"


def test_a_name_with_a_private_address_gets_no_request(receiver: Receiver) -> None:
    outcome = send(WebhookSender((), look_up=always("127.0.0.1")), receiver.url)
    assert "127.0.0.1, which is not a public one" in outcome.message
    assert receiver.received == []


def test_proxies_of_the_environment_are_not_used(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert send(WebhookSender(NETWORKS), receiver.url).response_status == 204


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (200, ""),
        (299, ""),
        (302, "redirects are not followed"),
        (400, "responded with 400"),
        (500, "responded with 500"),
    ],
)
def test_only_a_success_counts(receiver: Receiver, status: int, message: str) -> None:
    receiver.lasting = status
    outcome = send(WebhookSender(NETWORKS), receiver.url)
    assert outcome.response_status == status
    assert message in outcome.message
    assert (outcome.message == "") == (message == "")
    assert len(receiver.received) == 1, "no redirect is followed"


def test_a_receiver_that_hangs_is_left_after_the_limit(receiver: Receiver) -> None:
    receiver.free.clear()
    outcome = send(WebhookSender(NETWORKS, timeout_s=SHORT_S), receiver.url)
    assert outcome == AttemptOutcome(
        message="no response within 0.3 s; respond before doing the work"
    )


@contextmanager
def dripping() -> Iterator[int]:
    """Port of a server that sends the bytes of a response forever, each before a read times out."""
    stop = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with closing(connection):
                connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not stop.wait(SHORT_S / 10):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            thread.join()


def test_a_receiver_that_responds_without_end_is_left_after_the_limit() -> None:
    with dripping() as port:
        url = f"http://127.0.0.1:{port}/"
        outcome = send(WebhookSender(NETWORKS, timeout_s=SHORT_S), url)
    assert "no response within 0.3 s" in outcome.message


def test_a_response_that_is_not_http_is_reported_without_its_bytes() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with closing(connection):
                while b"}" not in connection.recv(65_536):
                    pass
                connection.sendall(b"SSH-2.0-" + b"x" * 5000 + b"\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        outcome = send(WebhookSender(NETWORKS), f"http://127.0.0.1:{server.getsockname()[1]}/")
        thread.join()
    assert outcome == AttemptOutcome(message="the response is not valid HTTP")


def test_a_receiver_that_does_not_listen_is_reported(receiver: Receiver) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    outcome = send(WebhookSender(NETWORKS), url)
    assert outcome.message.startswith("the request failed (")
    assert outcome.response_status is None


def test_a_name_that_is_not_resolved_is_reported() -> None:
    def fail(host: str, timeout_s: float, _user: str) -> list[Address]:
        raise LookupFailed(f"{host} cannot be resolved in {timeout_s:g} s")

    outcome = send(WebhookSender(NETWORKS, look_up=fail, timeout_s=2.0), "https://hooks.test/")
    assert outcome == AttemptOutcome(message="hooks.test cannot be resolved in 2 s")


@pytest.fixture
def hanging_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let names be resolved after the test only."""
    free = threading.Event()

    def hang(*_: object, **__: object) -> list[object]:
        free.wait()
        raise OSError(1, "no answer")

    monkeypatch.setattr(host_lookup.socket, "getaddrinfo", hang)
    yield
    free.set()
    for thread in threading.enumerate():
        if thread.name == "host-lookup":
            thread.join()


@pytest.mark.usefixtures("hanging_names")
def test_a_name_server_that_hangs_delays_nobody_beyond_the_limit() -> None:
    with pytest.raises(LookupFailed, match=r"not resolved within 0\.1 s; is the name server"):
        look_up_host("hooks.test", 0.1, "ada")


@pytest.mark.usefixtures("hanging_names")
def test_lookups_that_hang_leave_room_for_addresses_and_other_users() -> None:
    for _ in range(MAX_LOOKUPS_PER_USER):
        with pytest.raises(LookupFailed):
            look_up_host("hooks.test", 0.01, "ada")
    with pytest.raises(LookupPostponed, match="4 other names of user 'ada' and 4 of all users"):
        look_up_host("hooks.test", 0.01, "ada")
    assert look_up_host("127.0.0.1", 0.01, "ada") == [HERE]
    with pytest.raises(LookupFailed):
        look_up_host("hooks.test", 0.01, "bob")


@pytest.mark.usefixtures("hanging_names")
def test_a_lookup_that_cannot_start_is_postponed_and_leaves_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(MAX_LOOKUPS_PER_USER):
            with pytest.raises(LookupPostponed, match="can't start new thread"):
                look_up_host("hooks.test", 0.01, "ada")
    with pytest.raises(LookupFailed):
        look_up_host("hooks.test", 0.01, "ada")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_a_host_of_this_machine_is_resolved(host: str) -> None:
    assert all(address.is_loopback for address in look_up_host(host, 30.0, "ada"))


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_a_name_that_cannot_exist_is_not_resolved(host: str) -> None:
    with pytest.raises(LookupFailed, match="cannot be resolved"):
        look_up_host(host, 30.0, "ada")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate for hooks.test and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "hooks.test")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "certificate.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.mark.parametrize(
    ("host", "arrives"), [("hooks.test", True), ("other.test", False), ("127.0.0.1", False)]
)
def test_the_certificate_must_be_that_of_the_name(
    certificate: Path, host: str, arrives: bool
) -> None:
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(certificate)
    asked: list[str | None] = []
    served.sni_callback = lambda _socket, name, _context: asked.append(name)
    with run_receiver(served) as receiver:
        trusted = ssl.create_default_context(cafile=str(certificate))
        sender = WebhookSender(NETWORKS, look_up=always("127.0.0.1"), tls=trusted)
        outcome = send(sender, f"https://{host}:{receiver.port}/")
    assert (outcome.response_status == 204) == arrives, outcome
    assert arrives or "CERTIFICATE_VERIFY_FAILED" in outcome.message
    assert asked == [None if host == "127.0.0.1" else host]
