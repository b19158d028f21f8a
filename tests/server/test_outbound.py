"""Nothing inside is reached, whatever the address says; and a request ends when it should."""

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest

from duly.errors import AddressRefused, DeliveryFailed, InvalidOption
from duly.runtime.outbound import Allow, Client, parse_url
from duly.runtime.outbound.client import MAX_ANSWER
from duly.runtime.outbound.rules import is_public
from tests.server.listening import Listener, Reply, listening

PUBLIC = "93.184.216.34"

# Every one of these leads some client or other to this machine, to its network, or nowhere good.
REFUSED = [
    "http://127.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://127.0.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0x7f.1:{port}/",
    "http://0x7f.0x0.0x0.0x1:{port}/",
    "http://017700000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://127.000.000.001:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://localhost:{port}/",
    "http://LOCALHOST:{port}/",
    "http://localhost.:{port}/",
    "http://anything.localhost:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[::127.0.0.1]:{port}/",
    "http://[64:ff9b::127.0.0.1]:{port}/",
    "http://[64:ff9b:1::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]:{port}/",
    "http://[fe80::1%25lo]:{port}/",
    "http://[fe80::1%lo]:{port}/",
    "http://[fe80::1]:{port}/",
    "http://[fc00::1]:{port}/",
    "http://[fec0::1]:{port}/",
    "http://[ff02::1]:{port}/",
    "http://[2001:db8::1]:{port}/",
    "http://[3fff::1]:{port}/",
    "http://10.0.0.1:{port}/",
    "http://100.64.0.1:{port}/",
    "http://169.254.169.254/latest/meta-data/",
    "http://172.16.0.1:{port}/",
    "http://192.168.1.1:{port}/",
    "http://192.0.0.8:{port}/",
    "http://192.88.99.1:{port}/",
    "http://198.18.0.1:{port}/",
    "http://224.0.0.1:{port}/",
    "http://240.0.0.1:{port}/",
    "http://255.255.255.255:{port}/",
    "http://１２７.０.０.１:{port}/",
    "http://127。0。0。1:{port}/",
    "http://①②⑦.⓪.⓪.①:{port}/",
    "http://ⓛocalhost:{port}/",
    "http://127.0.0.1%2f@example.com:{port}/",
    "http://example.com@127.0.0.1:{port}/",
    "http://user:password@example.com/",
    "http://127.0.0.1:{port}#@example.com/",
    "http://example.com#fragment",
    "http://example.com\\@127.0.0.1:{port}/",
    "http://127.0.0.1\t:{port}/",
    " http://127.0.0.1:{port}/",
    "http://127.0.0.1:{port}/\r\nX-Injected: yes",
    "http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x",
    "http://example.com/\x00",
    "http://example.com/\u2028",
    "http://example.com/ü",
    "http://example.com/a\\b",
    "http:///127.0.0.1:{port}/",
    "http:127.0.0.1:{port}/",
    "//127.0.0.1:{port}/",
    "http://:{port}/",
    "http://example.com:/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:８０/",
    "http://exa mple.com/",
    "http://example..com/",
    "http://-example.com/",
    "http://[::1/",
    "http://%31%32%37.0.0.1:{port}/",
    "ftp://127.0.0.1:{port}/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:{port}/_POST",
    "unix:///var/run/docker.sock",
    "",
    "http://" + "a" * 3000,
]


def found(*addresses: str):
    """A resolver that gives these."""

    def resolve(host, port, **_):
        return [_row(address, port) for address in addresses]

    return resolve


def _row(address: str, port: int):
    if ":" in address:
        return (socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, port, 0, 0))
    return (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))


def post(client: Client, url: str, headers=None, seconds: float = 10):
    return client.post(url, b"{}", headers or {}, seconds=seconds)


@pytest.mark.parametrize("form", REFUSED)
def test_an_address_that_leads_inside_is_refused_and_nothing_is_sent(form):
    with listening() as listener:
        with pytest.raises(AddressRefused):
            post(Client(resolve=found("127.0.0.1")), form.format(port=listener.port))
        assert listener.connections == 0


def test_the_corpus_is_large_enough():
    assert len(set(REFUSED)) >= 40


INSIDE = [
    *("127.0.0.1", "10.1.2.3", "169.254.169.254", "0.0.0.0", "100.64.0.1", "192.168.0.1"),
    *("::1", "::", "::ffff:127.0.0.1", "::127.0.0.1", "fe80::1", "fe80::1%1", "fd00::1"),
    *("64:ff9b::a00:1", "2002:a00:1::", "2001::1", "ff02::1", "2001:db8::1"),
]


@pytest.mark.parametrize("address", INSIDE)
def test_a_name_that_leads_inside_is_refused_and_nothing_is_sent(address):
    with listening() as listener:
        with pytest.raises(AddressRefused):
            post(Client(resolve=found(address)), f"http://evil.example:{listener.port}/")
        assert listener.connections == 0


@pytest.mark.parametrize("answers", [(PUBLIC, "127.0.0.1"), ("127.0.0.1", PUBLIC)])
def test_one_address_inside_among_public_ones_refuses_all(answers):
    with listening() as listener:
        with pytest.raises(AddressRefused, match=r"127\.0\.0\.1"):
            post(Client(resolve=found(*answers)), f"http://evil.example:{listener.port}/")
        assert listener.connections == 0


def test_a_host_is_looked_up_once_so_a_second_answer_changes_nothing(monkeypatch):
    asked, connected = [], []

    def rebinding(host, port, **_):
        asked.append(host)
        return [_row(PUBLIC if len(asked) == 1 else "127.0.0.1", port)]

    def connect(sock, where):
        connected.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(DeliveryFailed, match="ConnectionRefusedError"):
        post(Client(resolve=rebinding), "http://evil.example:8080/")
    assert (asked, connected) == (["evil.example"], [(PUBLIC, 8080)])


def test_a_zone_in_what_the_resolver_gives_is_refused():
    def resolve(host, port, **_):
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2606:4700::1", port, 0, 3))]

    with pytest.raises(AddressRefused, match="zone"):
        post(Client(resolve=resolve), "http://evil.example/")


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("93.184.216.34", True),
        ("2606:4700::1111", True),
        ("64:ff9b::808:808", True),
        ("64:ff9b::7f00:1", False),
        ("::ffff:8.8.8.8", False),
        ("2002:808:808::", False),
        ("1.1.1.1", True),
    ],
)
def test_what_is_public(address, public):
    assert is_public(ip_address(address)) is public


# What the app allows -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry", ["127.0.0.1", "127.0.0.0/8", "127.0.0.1/32", "inside.example", "INSIDE.example"]
)
def test_what_the_app_allows_is_sent_to(entry):
    client = Client(Allow([entry]), resolve=found("127.0.0.1"))
    with listening() as listener:
        answer = post(client, f"http://inside.example:{listener.port}/x?y=1")
    assert (answer.status, answer.body) == (200, "{}")
    [heard] = listener.heard
    assert heard.path == "/x?y=1"
    assert heard.headers["host"] == f"inside.example:{listener.port}"
    assert heard.headers["content-type"] == "application/json"


def test_an_allowed_port_is_that_port_only():
    with listening() as listener, listening() as other:
        client = Client(Allow([f"127.0.0.1:{listener.port}"]))
        assert post(client, listener.url).status == 200
        with pytest.raises(AddressRefused):
            post(client, other.url)
        assert other.connections == 0


def test_an_allowed_network_lets_nothing_else_in():
    client = Client(Allow(["127.0.0.1"]), resolve=found("127.0.0.1", "10.0.0.1"))
    with listening() as listener, pytest.raises(AddressRefused, match=r"10\.0\.0\.1"):
        post(client, f"http://inside.example:{listener.port}/")
    assert listener.connections == 0


def test_an_allowed_address_may_not_be_spelled_in_other_ways():
    client = Client(Allow(["127.0.0.0/8"]))
    for spelling in ("http://2130706433/", "http://127.1/", "http://[::ffff:127.0.0.1]/"):
        with pytest.raises(AddressRefused):
            client.check(spelling)


@pytest.mark.parametrize("entry", ["", "a b", "http://x", "10.0.0.1/8", "10.0.0.0/8:80", "x/8", 5])
def test_an_entry_that_makes_no_sense_is_refused(entry):
    with pytest.raises(InvalidOption, match="allow"):
        Allow([entry])


def test_one_string_is_no_list():
    with pytest.raises(InvalidOption, match="list"):
        Allow("127.0.0.1")


def test_a_name_in_other_letters_is_looked_up_in_ascii():
    target = parse_url("https://BÜCHER.example/ä".replace("ä", "a"))
    assert (target.host, target.port, target.authority) == (
        "xn--bcher-kva.example",
        443,
        "xn--bcher-kva.example",
    )


# What is sent and read ----------------------------------------------------------------------------


@pytest.fixture
def client() -> Client:
    return Client(Allow(["127.0.0.1"]))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_not_followed(client, status):
    with listening() as inside:
        reply = Reply(status, b"", (("Location", inside.url),))
        with listening(reply) as listener:
            assert post(client, listener.url).status == status
    assert (len(listener.heard), inside.connections) == (1, 0)


def test_proxies_of_the_environment_are_not_used(client, monkeypatch):
    with listening() as proxy, listening() as listener:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("no_proxy", raising=False)
        assert post(client, listener.url).status == 200
    assert proxy.connections == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "b\r\nX-Injected: yes"),
        ("X-A", "b\nX-Injected: yes"),
        ("X-A", "b\rX"),
        ("X-A", "b\0"),
        ("X-A", "ü"),
        ("X-A\r\nX-Injected", "yes"),
        ("X A", "b"),
        ("X-A:", "b"),
        ("", "b"),
        ("Host", "inside"),
        ("Content-Length", "0"),
        ("transfer-encoding", "chunked"),
        ("Connection", "upgrade"),
    ],
)
def test_a_header_that_would_begin_something_else_is_refused(client, name, value):
    with listening() as listener:
        with pytest.raises(InvalidOption, match="headers") as refusal:
            post(client, listener.url, {name: value})
        assert listener.connections == 0
    assert "Injected: yes" not in str(refusal.value)


def test_only_the_first_part_of_an_answer_is_kept(client):
    with listening(Reply(200, b"x" * (3 * MAX_ANSWER))) as listener:
        answer = post(client, listener.url)
    assert answer.body == "x" * MAX_ANSWER


def test_an_answer_that_is_no_text_is_kept_as_text(client):
    with listening(Reply(200, b"\xff\x00a")) as listener:
        assert post(client, listener.url).body == "��a"


@contextmanager
def dripping(*, status_first: bool) -> Iterator[socket.socket]:
    """Answers one byte at a time, for ever."""
    stop = threading.Event()
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            whole = b"HTTP/1.1 200 OK\r\n\r\n" if status_first else b"HTTP/1.1 200 OK\r\nX-A: "
            try:
                connection.sendall(whole)
                while not stop.wait(0.02):
                    connection.sendall(b"a")
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        thread.join()
        server.close()


def test_an_answer_that_drips_ends_at_the_deadline_of_it_all(client):
    with dripping(status_first=False) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(DeliveryFailed, match=r"no response within 0\.3 s"):
            post(client, url, seconds=0.3)


def test_a_body_that_drips_is_cut_at_the_deadline_and_its_status_counts(client):
    with dripping(status_first=True) as server:
        answer = post(client, f"http://127.0.0.1:{server.getsockname()[1]}/", seconds=0.3)
    assert answer.status == 200
    assert set(answer.body) == {"a"}
    assert 300 <= answer.ms < 5_000


def test_a_resolver_that_does_not_answer_ends_at_the_deadline():
    stop = threading.Event()

    def resolve(*_, **__):
        stop.wait(20)
        return []

    try:
        with pytest.raises(DeliveryFailed, match=r"no response within 0\.1 s"):
            post(Client(resolve=resolve), "http://slow.example/", seconds=0.1)
    finally:
        stop.set()


def test_a_host_without_an_address_is_no_answer():
    def resolve(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    with pytest.raises(DeliveryFailed, match="not known"):
        post(Client(resolve=resolve), "http://nowhere.example/")


def test_a_connection_that_is_refused_is_no_answer(client):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(DeliveryFailed, match="ConnectionRefusedError"):
        post(client, f"http://127.0.0.1:{port}/")


def test_an_address_that_takes_no_connection_gives_way_to_the_next():
    client = Client(Allow(["127.0.0.0/8"]), resolve=found("127.0.0.2", "127.0.0.1"))
    with listening() as listener:
        assert post(client, f"http://two.example:{listener.port}/").status == 200


def test_an_address_that_does_not_answer_leaves_time_for_the_next():
    client = Client(Allow(["127.0.0.0/8"]), resolve=found("127.0.0.2", "127.0.0.1"))
    with ExitStack() as stack:
        listener = stack.enter_context(listening())
        silent = stack.enter_context(socket.socket())
        silent.bind(("127.0.0.2", listener.port))
        silent.listen(0)
        for _ in range(4):  # nobody takes these, and there is no place for another
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(silent.getsockname())
        assert post(client, f"http://two.example:{listener.port}/", seconds=2).status == 200


def test_something_that_is_not_http_is_no_answer(client):
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"220 mail.example ESMTP\r\n")

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(DeliveryFailed, match="BadStatusLine"):
        post(client, f"http://127.0.0.1:{server.getsockname()[1]}/")
    thread.join()
    server.close()


# TLS ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, with its key, of inside.example."""
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    command += " -subj /CN=inside.example -addext subjectAltName=DNS:inside.example"
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run([*command.split(), *files], check=True, capture_output=True)
    return folder


@contextmanager
def listening_with_tls(certificate: Path, names: list[str | None]) -> Iterator[Listener]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    with listening() as listener:
        listener.socket = context.wrap_socket(listener.socket, server_side=True)
        yield listener


def test_the_certificate_is_checked_for_the_name_and_the_name_is_said(certificate):
    trusted = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    client = Client(Allow(["127.0.0.1"]), resolve=found("127.0.0.1"), tls=trusted)
    names: list[str | None] = []
    with listening_with_tls(certificate, names) as listener:
        assert post(client, f"https://inside.example:{listener.port}/").status == 200
        with pytest.raises(DeliveryFailed, match="certificate was not accepted"):
            post(client, f"https://other.example:{listener.port}/")
        client.tls = None
        with pytest.raises(DeliveryFailed, match="certificate was not accepted"):
            post(client, f"https://inside.example:{listener.port}/")
    assert names[0] == "inside.example"
    assert len(listener.heard) == 1
