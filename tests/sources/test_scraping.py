"""Fetching from an exporter: certificates, passwords, redirects; every failure is one line that names the address."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from neurontools.sources.remote import ScrapeError, Scraper, scrape_url
from neurontools.sources.retrying import RetryingSource


class Served:
    """A local server: `answers` by path, either a text or a redirect to an address; remembers what it was asked."""

    def __init__(self, certificate=None, host="127.0.0.1"):
        self.answers, self.asked = {"/metrics": "up 1\n"}, []
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                served.asked.append((self.path, self.headers.get("Authorization")))
                answer = served.answers[self.path]
                if isinstance(answer, tuple):
                    self.send_response(302)
                    self.send_header("Location", answer[0])
                    self.end_headers()
                else:
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(answer.encode())

            def log_message(self, *_):
                pass

        class Server(HTTPServer):
            def handle_error(self, *_):
                pass  # clients that do not trust it hang up

        self.server = Server((host, 0), Handler)
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self):
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def serve():
    made = []

    def start(*arguments):
        made.append(Served(*arguments))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate that nobody signed but itself, and its key."""
    where = tmp_path_factory.mktemp("certificate")
    cert, key = where / "cert.pem", where / "key.pem"
    subject = "-subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 {subject} -keyout {key} -out {cert}"
    subprocess.run(command.split(), check=True, capture_output=True)
    return str(cert), str(key)


def fetched(url):
    return Scraper(scrape_url(url)).text()


def test_a_certificate_that_is_not_trusted_is_refused_and_the_way_out_is_named(serve, certificate):
    port = serve(certificate).port
    with pytest.raises(ScrapeError) as refused:
        fetched(f"https://127.0.0.1:{port}")
    assert refused.value.message.startswith(
        f"the certificate of 127.0.0.1:{port} is not trusted (self-signed certificate)"
    )
    assert "SSL_CERT_FILE" in refused.value.message
    assert "https+insecure://" in refused.value.message


def test_it_is_taken_when_it_is_named_or_when_any_will_do(serve, certificate, monkeypatch):
    port = serve(certificate).port
    assert fetched(f"https+insecure://127.0.0.1:{port}") == "up 1\n"
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    assert fetched(f"https://127.0.0.1:{port}") == "up 1\n"


def test_a_certificate_of_another_host_is_refused(serve, certificate, monkeypatch):
    port = serve(certificate, "127.0.0.2").port
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    with pytest.raises(ScrapeError, match=r"not trusted .*mismatch"):
        fetched(f"https://127.0.0.2:{port}")


def test_a_server_without_https_is_named(serve):
    port = serve().port
    with pytest.raises(ScrapeError, match=f"127.0.0.1:{port} does not speak HTTPS"):
        fetched(f"https://127.0.0.1:{port}")


def test_redirects_are_followed_between_hosts_and_to_https(serve, certificate):
    first, second = serve(), serve()
    first.answers["/metrics"] = (f"http://localhost:{second.port}/elsewhere",)
    second.answers["/elsewhere"] = "up 2\n"
    assert fetched(f"http://127.0.0.1:{first.port}") == "up 2\n"


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("http://127.0.0.1:9/metrics", "redirects to http://127.0.0.1:9/metrics, which is not encrypted"),
        ("ftp://127.0.0.1/x", "redirects to ftp://127.0.0.1/x, which is not HTTP"),
        ("file:///etc/passwd", "302"),
    ],
)
def test_a_redirect_to_something_less_safe_is_not(serve, certificate, target, text):
    server = serve(certificate)
    server.answers["/metrics"] = (target,)
    with pytest.raises(ScrapeError, match=text):
        fetched(f"https+insecure://127.0.0.1:{server.port}")


def test_a_redirect_in_a_circle_ends(serve):
    server = serve()
    server.answers["/metrics"] = ("/metrics",)
    with pytest.raises(ScrapeError, match="answers 302 a redirect loop"):
        fetched(f"http://127.0.0.1:{server.port}")
    assert len(server.asked) < 10


def test_a_password_goes_to_the_exporter_alone_and_into_no_message(serve):
    first, second = serve(), serve()
    first.answers["/metrics"] = (f"http://127.0.0.1:{second.port}/metrics",)
    assert fetched(f"http://me:p%40ss@127.0.0.1:{first.port}") == "up 1\n"
    assert first.asked == [("/metrics", "Basic " + b64encode(b"me:p@ss").decode())]
    assert second.asked == [("/metrics", None)]
    with pytest.raises(ScrapeError) as unreachable:
        fetched("http://me:secret@127.0.0.1:9")
    assert "secret" not in unreachable.value.message
    with RetryingSource("http://me:secret@127.0.0.1:9", 0.05) as follower:
        assert "secret" not in next(follower.updates()).text


def test_neuron_top_says_it_of_the_machine_and_shows_the_others(tool, serve, certificate):
    port = serve(certificate).port
    done = tool("neuron-top", "--once", "--interval", "0.1", "--remote", f"ci=https://127.0.0.1:{port}")
    assert done.returncode == 0, done.stderr
    assert "is not trusted (self-signed certificate)" in done.stdout
    done = tool("neuron-ls", "--source", f"https://127.0.0.1:{port}")
    assert done.returncode != 0
    assert "SSL_CERT_FILE=cert.pem" in done.stderr


@contextmanager
def dripping(head, drop, certificate=None):
    """Serve a head, then one more byte again and again; yields the port."""
    done = threading.Event()

    def serve(listener):
        accepted = listener.accept()[0]
        with (
            suppress(OSError),
            context.wrap_socket(accepted, server_side=True) if certificate else accepted as client,
        ):
            client.sendall(head)
            while not done.wait(0.01):
                client.sendall(drop)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if certificate:
        context.load_cert_chain(*certificate)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield listener.getsockname()[1]
        done.set()
        thread.join()


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.0 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
    ids=["body", "head", "chunks"],
)
def test_an_answer_that_drips_is_given_up(monkeypatch, head, drop):
    monkeypatch.setattr("neurontools.sources.remote._ANSWER_TIMEOUT_S", 0.3)
    with dripping(head, drop) as port, pytest.raises(ScrapeError, match=f"127.0.0.1:{port}.*timed out"):
        fetched(f"http://127.0.0.1:{port}")


def test_so_is_one_behind_a_redirect(monkeypatch, serve, certificate):
    monkeypatch.setattr("neurontools.sources.remote._ANSWER_TIMEOUT_S", 1.0)
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    first = serve()
    with dripping(b"HTTP/1.0 200 OK\r\n\r\n", b"x", certificate) as port:
        first.answers["/metrics"] = (f"https://127.0.0.1:{port}/metrics",)
        with pytest.raises(ScrapeError, match="timed out"):
            fetched(f"http://127.0.0.1:{first.port}")
