"""Order in which webhooks are served."""

from __future__ import annotations

from accordion_service.domain.webhooks.serving_order import MAX_PAUSE_S, WebhookTurns


def test_a_webhook_pauses_twice_as_long_with_each_failure_up_to_a_limit() -> None:
    turns, now = WebhookTurns(), 0.0
    for pause_s in (2.0, 4.0, 8.0, 16.0, 32.0, MAX_PAUSE_S, MAX_PAUSE_S):
        turns.record("a", has_failed=True, now=now)
        assert turns.list_paused(now + pause_s - 1.0) == {"a"}
        now += pause_s
        assert turns.list_paused(now) == set()


def test_a_success_ends_the_pauses() -> None:
    turns = WebhookTurns()
    for number in range(9):
        turns.record("a", has_failed=True, now=float(number))
    turns.record("a", has_failed=False, now=9.0)
    assert turns.list_paused(9.0) == set()
    turns.record("a", has_failed=True, now=9.0)
    assert turns.list_paused(11.0) == set()


def test_a_webhook_that_had_its_turn_goes_behind_others_and_a_failed_one_last() -> None:
    turns = WebhookTurns()
    turns.record("failed", has_failed=True, now=1.0)
    turns.record("earlier", has_failed=False, now=2.0)
    turns.record("later", has_failed=False, now=3.0)
    order = sorted(["later", "failed", "new", "earlier"], key=turns.sort_key)
    assert order == ["new", "earlier", "later", "failed"]


def test_old_turns_are_forgotten() -> None:
    turns = WebhookTurns()
    turns.record("a", has_failed=True, now=0.0)
    turns.list_paused(3600.0)
    assert turns.sort_key("a") == turns.sort_key("never served")
