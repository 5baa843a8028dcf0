"""Tests of the addresses that are printed, and of those that count as one machine."""

import socket
from unittest.mock import MagicMock

import pytest

from app.web.addresses import is_local, network_of, page_addresses


@pytest.mark.parametrize(
    ("server", "addresses"),
    [
        ("127.0.0.1", ("http://127.0.0.1:80/", "")),
        ("localhost", ("http://localhost:80/", "")),
        ("::1", ("http://[::1]:80/", "")),
        ("192.0.2.9", ("http://192.0.2.9:80/",) * 2),
        ("2001:db8::9", ("http://[2001:db8::9]:80/",) * 2),
        ("tower", ("http://tower:80/",) * 2),
    ],
)
def test_a_page_has_an_address_for_this_machine_and_one_for_others(
    server: str, addresses: tuple[str, str]
) -> None:
    assert page_addresses(server, 80) == addresses


@pytest.mark.parametrize(
    ("server", "own", "address"),
    [
        ("0.0.0.0", "192.0.2.7", "http://192.0.2.7:80/"),
        ("::", "2001:db8::7", "http://[2001:db8::7]:80/"),
        ("0.0.0.0", "", "http://tower:80/"),
    ],
)
def test_of_all_addresses_others_get_the_one_that_leads_out(
    server: str, own: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = MagicMock()
    probe.__enter__.return_value = probe
    probe.connect.side_effect = None if own else OSError("Network is unreachable")
    probe.getsockname.return_value = (own, 5)
    monkeypatch.setattr(socket, "socket", lambda *_: probe)
    monkeypatch.setattr(socket, "gethostname", lambda: "tower")
    assert page_addresses(server, 80) == ("http://localhost:80/", address)


def test_which_addresses_are_one_machine() -> None:
    assert network_of("192.0.2.9") == "192.0.2.9"
    assert network_of("2001:db8::9") == network_of("2001:db8::ffff:9") != network_of("2001:db8:1::9")
    assert all(map(is_local, ("127.8.8.8", "::1", "localhost")))
    assert not any(map(is_local, ("10.0.0.7", "tower", "::")))
