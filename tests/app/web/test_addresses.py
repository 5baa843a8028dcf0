"""Tests of the addresses that are printed, and of those that count as one machine."""

import os
import socket
from typing import Any
from unittest.mock import MagicMock

import pytest

from app.web.addresses import is_local, network_of, own_names, page_addresses


def test_a_page_has_an_address_for_this_machine_and_one_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, own, probe = list[Any](), [""], MagicMock()
    probe.__enter__.return_value = probe
    probe.connect.side_effect = lambda address: asked.append(address) if own[0] else os.open("/nowhere", 0)
    probe.getsockname.side_effect = lambda: (own[0], 5)
    monkeypatch.setattr(socket, "socket", lambda *kinds: asked.append(kinds) or probe)
    monkeypatch.setattr(socket, "gethostname", lambda: "tower")
    for server, addresses in (
        ("127.0.0.1", ("http://127.0.0.1:80/", "")), ("localhost", ("http://localhost:80/", "")),
        ("::1", ("http://[::1]:80/", "")), ("192.0.2.9", ("http://192.0.2.9:80/",) * 2),
        ("2001:db8::9", ("http://[2001:db8::9]:80/",) * 2), ("tower", ("http://tower:80/",) * 2),
        ("0.0.0.0", ("http://localhost:80/", "http://tower:80/")),
    ):  # fmt: skip
        assert page_addresses(server, 80) == addresses
    asked.clear()
    for server, own[0], address in (
        ("0.0.0.0", "192.0.2.7", "192.0.2.7"),
        ("::", "2001:db8::7", "[2001:db8::7]"),
    ):
        assert page_addresses(server, 80) == ("http://localhost:80/", f"http://{address}:80/")
    assert asked == [
        (socket.AF_INET, socket.SOCK_DGRAM), ("192.0.2.1", 9), (socket.AF_INET6, socket.SOCK_DGRAM),
        ("2001:db8::1", 9),
    ]  # fmt: skip


def test_which_addresses_and_names_are_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network_of("192.0.2.9") == "192.0.2.9"
    assert network_of("2001:db8::9") == network_of("2001:db8::ffff:9") != network_of("2001:db8:1::9")
    assert all(map(is_local, ("127.8.8.8", "::1", "localhost")))
    assert not any(map(is_local, ("10.0.0.7", "tower", "::")))
    monkeypatch.setattr(socket, "gethostname", lambda: "Tower.lan")
    assert own_names("Desk") == {"desk", "tower.lan", "tower.local"}
    assert own_names("127.0.0.1") == frozenset()
