"""Every way of naming an address that is not the public Internet."""

from __future__ import annotations

import pytest

from worker.addresses import is_address, is_public, literal_private, reached_by

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.15",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2606:4700:4700::1111",
    "2a00:1450:4001:80b::200e",
    "2001:200::1",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
    "2606:4700::5efe:808:808",
]
NOT_PUBLIC = [
    # this network, loopback, private
    "0.0.0.0",
    "0.1.2.3",
    "127.0.0.1",
    "127.255.255.254",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.0.1",
    # shared by carriers, link-local, metadata services
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "169.254.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "192.0.0.192",
    # documentation, benchmarks, relays
    "192.0.2.1",
    "198.51.100.1",
    "203.0.113.1",
    "198.18.0.1",
    "198.19.255.255",
    "192.88.99.1",
    # multicast, reserved, broadcast
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    # IPv6: unspecified, loopback, unique local, link-local, site-local, multicast
    "::",
    "::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    # IPv6: documentation, discard, protocol assignments, Teredo, benchmarks, segment routing
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:2::1",
    "2001:20::1",
    "5f00::1",
    "4000::1",
    # IPv4 inside IPv6: mapped, compatible, NAT64 (well-known and local), 6to4, ISATAP
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:0:10.0.0.1",
    "::127.0.0.1",
    "::8.8.8.8",
    "64:ff9b::10.0.0.1",
    "64:ff9b::169.254.169.254",
    "64:ff9b:1::8.8.8.8",
    "2002:7f00:1::",
    "2002:a00:1::1",
    "2002:a9fe:a9fe::1",
    "2606:4700::5efe:10.0.0.1",
    "2606:4700::200:5efe:192.168.0.1",
    # no addresses at all
    "",
    "localhost",
    "1.1.1",
    "1.1.1.1.1",
    "01.1.1.1",
    "[::1]",
]


@pytest.mark.parametrize("ip", PUBLIC)
def test_address_is_public(ip: str) -> None:
    assert is_public(ip)


@pytest.mark.parametrize("ip", NOT_PUBLIC)
def test_address_is_not_public(ip: str) -> None:
    assert not is_public(ip)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "0177.0.0.1",
        "2130706433",
        "0x7f000001",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "①②⑦.0.0.1",
        "10.1.2.3:8080",
        "169.254.169.254",
        "0",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "localhost:80",
        "a.b.localhost",
        "user:pw@localhost",
        "[::1]",
        "[::1]:8080",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[fe80::1]",
    ],
)
def test_url_names_something_private(host: str) -> None:
    assert literal_private(f"http://{host}/path?q#f")
    assert literal_private(f"https://{host}")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "http://8.8.8.8/",
        "http://[2606:4700:4700::1111]/",
        "http://localhost.example.org/",
        "http://notlocalhost/",
        "http://10.0.0.1.example.org/",
        "http://example.org/127.0.0.1",
        "http://example.org:80/@localhost",
        "not a url",
        "",
        "http://",
        "http://[::1",
        "mailto:root@localhost",
        "http://\ud800/",
    ],
)
def test_url_names_nothing_private(url: str) -> None:
    assert not literal_private(url)


@pytest.mark.parametrize(
    ("ip", "name"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("64:ff9b::192.0.2.1", "192.0.2.1"),
        ("2606:4700:0:0::1111", "2606:4700::1111"),
        ("FE80::1%eth0", "fe80::1"),
    ],
)
def test_an_address_has_one_name(ip: str, name: str) -> None:
    assert (True, name) == (is_address(ip), reached_by(ip))


@pytest.mark.parametrize("name", ["h.example", "1.2.3", "", "[::1]", "1.2.3.4.example"])
def test_names_are_no_addresses(name: str) -> None:
    assert not is_address(name)
