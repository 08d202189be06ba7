"""The bench of accuracy on real links: contestants train for two epochs of few samples."""

from __future__ import annotations

import random

import pytest

from tests.bench.accuracy import WORKER, build_spec
from tests.bench.hosts import WorkerHosts
from tests.bench.learning import ALL, EVERY_STEP, NONE
from tests.netlab.lab import may_make_hosts

HOSTS, RATE = 2, 0.05
DENSE = 4 * 74_074
"""Bytes of the model's gradients."""
STEPS = 8


@pytest.fixture(scope="module")
def hosts(require):
    require("ip")
    require.package("torchft")
    if not may_make_hosts():
        require.missing("making network namespaces needs root")
    with WorkerHosts(HOSTS, program=WORKER) as hosts:
        yield hosts


@pytest.fixture
def train(hosts, require, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORDION_DATA", str(require.data(ALL["images"].data).parent))

    def train(peer=None, changes=EVERY_STEP):
        spec = build_spec(ALL["images"], changes, rate=RATE, seed=3)
        spec["task"]["options"] |= {"samples": 64 * STEPS // 2, "eval_samples": 64}
        spec["training"] |= {"epochs": 2, "global_batch": 64, "lr_decay": {"at": [1]}}
        spec["workers"] = {"min": HOSTS, "max": HOSTS, "balance": False}
        storage = tmp_path / str(random.random())
        storage.mkdir()
        answers = hosts.ask(
            "train",
            spec=spec,
            peer=peer,
            metric="loss",
            workers=HOSTS,
            port=random.randint(20_000, 50_000),
            storage=str(storage),
        )
        assert [answer["failed"] for answer in answers] == [""] * HOSTS
        return answers[0]

    return train


def metrics(answer):
    return [epoch["metric"] for epoch in answer["epochs"]]


def test_peers_that_send_all_learn_what_our_own_loop_learns_without_compression(train):
    ours = train(changes=NONE["none, every step"])
    assert len(metrics(ours)) == 2
    for peer in ("DDP", "torchft's DDP"):
        answer = train(peer)
        assert metrics(answer) == pytest.approx(metrics(ours), rel=1e-4), peer
        assert STEPS * DENSE < answer["sent"] < 1.2 * STEPS * DENSE, peer


@pytest.mark.parametrize(
    ("peer", "share"),
    [
        ("DDP, fp16 hook", 0.5),
        ("torchft's DiLoCo, 8 steps", 1 / STEPS),
        ("PyTorch's post-local SGD, period 4", 1.0),
    ],
)
def test_a_peer_sends_its_share_of_the_bytes_of_plain_ddp_and_learns(train, peer, share):
    answer = train(peer)
    assert answer["epochs"][-1]["metric"] < 2.6
    assert share * STEPS * DENSE < answer["sent"] < 1.5 * share * STEPS * DENSE


def test_time_and_bytes_of_our_own_jobs_grow_from_epoch_to_epoch(train):
    answer = train(changes={"local_steps": "{low: 4}"})
    first, second = answer["epochs"]
    assert 0 < first["seconds"] < second["seconds"]
    assert 0 < first["sent"] < second["sent"] < STEPS * DENSE / 4
