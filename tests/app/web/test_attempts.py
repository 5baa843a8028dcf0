"""Tests of how often a password may be tried, and against whom a wrong one counts."""

from app.web.login import LOGIN_ATTEMPTS, LOGIN_SECONDS, Attempts


def test_attempts_are_counted_by_address_and_come_back_one_by_one() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    each = LOGIN_SECONDS / LOGIN_ATTEMPTS
    assert [attempts.begin("a") for _ in range(LOGIN_ATTEMPTS + 1)] == [0.0] * LOGIN_ATTEMPTS + [each]
    assert attempts.begin("b") == 0
    now[0] = each
    assert [attempts.begin("a"), attempts.begin("a")] == [0.0, each]
    attempts.succeeded("a")
    assert [attempts.begin("a") for _ in range(LOGIN_ATTEMPTS)] == [0.0] * LOGIN_ATTEMPTS
    assert sum(attempts.begin(f"c{number}") == 0 for number in range(1000)) == 1000
    # One machine has many addresses of version 6, and counts as one.
    assert [attempts.begin(f"2001:db8::{number:x}") for number in range(LOGIN_ATTEMPTS + 1)][-1] > 0
    assert attempts.begin("2001:db8:0:1::1") == 0
