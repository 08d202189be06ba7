"""Scopes, roles and limits of callers."""

from __future__ import annotations

import pytest

from accordion_service.access import rate_limits
from accordion_service.access.rate_limits import RateLimits
from accordion_service.access.sessions import new_session, session_token
from accordion_service.domain.access import (
    FULL_ACCESS,
    SCOPES_OF_ROLE,
    Caller,
    Role,
    Scope,
    describe_missing_scope,
)
from accordion_service.domain.tokens import new_token, parse_token
from accordion_service.errors import TooManyRequests


def caller(role: Role) -> Caller:
    return Caller(user="ada", scopes=SCOPES_OF_ROLE[role], token_id="t")


def test_every_role_has_scopes_and_each_scope_belongs_to_a_role() -> None:
    assert set(SCOPES_OF_ROLE) == set(Role)
    assert frozenset().union(*SCOPES_OF_ROLE.values()) == frozenset(Scope)
    assert all(Scope.READ in scopes for scopes in SCOPES_OF_ROLE.values())
    assert [role for role, scopes in SCOPES_OF_ROLE.items() if Scope.ADMIN in scopes] == ["admin"]


@pytest.mark.parametrize(
    ("role", "owner", "sees", "changes"),
    [
        (Role.EDITOR, "ada", True, True),
        (Role.EDITOR, "bob", False, False),
        (Role.EDITOR, None, True, True),
        (Role.VIEWER, "bob", True, False),
        (Role.OPERATOR, "bob", True, True),
    ],
)
def test_owners_hide_their_jobs_from_whoever_may_not_see_all(role, owner, sees, changes) -> None:
    assert caller(role).may_see(owner) is sees
    assert caller(role).may_change(owner) is changes


def test_a_missing_scope_is_named_with_the_roles_that_have_it() -> None:
    said = describe_missing_scope(caller(Role.VIEWER), Scope.SUBMIT)
    assert "needs the scope 'submit'" in said
    assert "user 'ada' has read, read:all, tokens" in said
    assert "editor, operator, admin" in said


def test_the_admin_token_has_every_scope() -> None:
    assert FULL_ACCESS.scopes == frozenset(Scope)


def test_a_token_is_parsed_into_its_parts() -> None:
    token = new_token()
    assert parse_token(str(token)) == token
    assert str(token).startswith("acc_")


@pytest.mark.parametrize(
    "text", ["", "acc", "acc_", "acc_1", "acc_1_", "xyz_1_2", "acc_é_2", "_1_2"]
)
def test_another_text_is_no_token(text: str) -> None:
    assert parse_token(text) is None


def test_a_session_names_the_token_that_began_it() -> None:
    assert session_token(new_session("k" * 16, 0.0, token_id="0a1b")) == "0a1b"
    assert session_token(new_session("k" * 16, 0.0, token_id="")) == ""
    assert session_token("1700000000-00ff.signature of an older version") == ""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def count(limits: RateLimits, token: str, requests: int) -> int:
    """Number of requests that are accepted."""
    accepted = 0
    for _ in range(requests):
        try:
            limits.count_request(Caller(user="ada", scopes=frozenset(), token_id=token))
        except TooManyRequests:
            continue
        accepted += 1
    return accepted


def test_a_token_may_burst_and_then_keeps_its_rate() -> None:
    clock = Clock()
    limits = RateLimits(2.0, 5, clock)
    assert count(limits, "a", 9) == 5
    assert count(limits, "b", 9) == 5
    clock.now = 1.0
    assert count(limits, "a", 9) == 2
    clock.now = 100.0
    assert count(limits, "a", 9) == 5


def test_tokens_beyond_the_limit_of_memory_push_out_rested_ones_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limits, "MAX_BUCKETS", 4)
    limits = RateLimits(1.0, 5, Clock())
    assert count(limits, "busy", 9) == 5
    for number in range(20):
        count(limits, f"quiet {number}", 1)
    assert count(limits, "busy", 1) == 0
