"""Tests of how often a password may be tried, and against whom a wrong one counts."""

from __future__ import annotations

from app.web.login import LOGIN_ATTEMPTS, LOGIN_SECONDS, Attempts, Names


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


def test_a_known_browser_has_attempts_of_its_own() -> None:
    attempts = Attempts(lambda: 0.0)
    known = attempts.succeeded("a")
    for _ in range(LOGIN_ATTEMPTS):
        attempts.begin("a", "invented")
    assert attempts.begin("a", "invented") > 0
    assert [attempts.begin("a", known) for _ in range(LOGIN_ATTEMPTS)] == [0.0] * LOGIN_ATTEMPTS
    assert attempts.begin("a", known) > 0
    assert attempts.succeeded("a", known) == known
    assert attempts.succeeded("a", "invented") not in ("invented", known)


def test_a_name_that_a_browser_keeps_has_an_end() -> None:
    now = [0.0]
    names = Names(60.0, lambda: now[0])
    first, second = names.add(), names.add()
    now[0] = 59.0
    assert first in names
    assert names.add(second) == second  # which begins anew
    assert names.add("invented") != "invented"
    names.forget("invented")
    names.forget(None)
    now[0] = 60.0
    assert [first in names, second in names, None in names, "" in names] == [False, True, False, False]
    names.forget(second)
    assert second not in names
