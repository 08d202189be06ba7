"""Where the workers of a group meet, and who cannot get in."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import DistNetworkError, DistStoreError, TCPStore

from accordion_workers.worker import group_rendezvous
from accordion_workers.worker.group_rendezvous import GroupStore, join_store

WAIT = timedelta(seconds=30)
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
"""Two addresses of one machine."""


@pytest.fixture
def meeting() -> GroupStore:
    return GroupStore(HERE)


def stranger(meeting: GroupStore, host: str = HERE) -> socket.socket:
    return socket.create_connection((host, meeting.address[1]), timeout=1.0)


def test_members_find_each_other(meeting: GroupStore) -> None:
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(join_store, meeting.address, rank, WAIT) for rank in (1, 2)]
        meeting.wait_for_members(3, WAIT).set("a", "b")
        assert [other.result().get("a") for other in others] == [b"b", b"b"]


def test_a_group_meets_on_one_address_only(meeting: GroupStore) -> None:
    with pytest.raises(ConnectionRefusedError):
        stranger(meeting, ELSEWHERE)


def test_nobody_can_connect_once_all_members_are_there(meeting: GroupStore) -> None:
    store = meeting.wait_for_members(1, WAIT)
    with pytest.raises(TimeoutError):
        stranger(meeting)
    store.set("a", "b")
    assert store.get("a") == b"b"


def refuse(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


def test_where_only_root_may_attach_a_filter_the_port_is_closed_too(
    meeting: GroupStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_rendezvous, "drop_packets", refuse)
    with ThreadPoolExecutor() as pool:
        other = pool.submit(join_store, meeting.address, 1, WAIT)
        store = meeting.wait_for_members(2, WAIT)
        with pytest.raises(TimeoutError):
            stranger(meeting)
        store.set("a", "b")
        assert other.result().get("a") == b"b"


def test_a_port_that_cannot_be_closed_is_told(
    meeting: GroupStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_rendezvous, "drop_packets", refuse)
    monkeypatch.setattr(group_rendezvous, "require_signatures", refuse)
    meeting.wait_for_members(1, WAIT).set("a", "b")
    assert "the kernel does not close the port of the group's store" in caplog.text


def test_a_group_does_not_form_while_a_stranger_is_connected(meeting: GroupStore) -> None:
    with (
        stranger(meeting),
        pytest.raises(DistStoreError, match="2 connections to the store of a group of 1"),
    ):
        meeting.wait_for_members(1, WAIT)


def test_who_does_not_know_the_secret_is_no_member(meeting: GroupStore) -> None:
    host, port, _ = meeting.address
    TCPStore(host, port, is_master=False).set("member/1", "guess")
    with pytest.raises(DistStoreError, match="does not know its secret"):
        meeting.wait_for_members(2, WAIT)


def test_a_member_is_not_led_astray_by_somebody_who_does_not_know_the_secret(
    meeting: GroupStore,
) -> None:
    host, port, _ = meeting.address
    TCPStore(host, port, is_master=False).set("closed", "guess")
    with pytest.raises(DistStoreError, match="does not know its secret"):
        join_store(meeting.address, 1, WAIT)


def test_a_leader_does_not_wait_for_ever_for_members(meeting: GroupStore) -> None:
    with pytest.raises(DistStoreError):
        meeting.wait_for_members(2, timedelta(seconds=0.1))


def test_an_address_that_this_machine_does_not_have_is_met_on_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "accordion_workers.worker.group_rendezvous.CONNECT_TIMEOUT", timedelta(seconds=0.2)
    )
    with pytest.raises(DistNetworkError):
        GroupStore("192.0.2.1")
    assert "group's store listens on all addresses" in caplog.text


def test_the_door_stays_open_for_engines_that_connect_again_later(meeting: GroupStore) -> None:
    meeting.wait_for_members(1, WAIT, closed=False)
    stranger(meeting).close()
