"""A real Dovecot on loopback for the tests: one process tree in a folder of its own, mailboxes as Maildir.

Runs as whoever runs the tests. Root may not own mail there, so for root it is the user `nobody`.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import hmac
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
from imapclient import IMAPClient

from tests.ports import free_port

PASSWORD = "pass-of-the-test"
START_TIMEOUT_S = 30.0

_CONFIG = """
protocols = imap
listen = 127.0.0.1
base_dir = {home}/run
state_dir = {home}/state
log_path = {home}/log
default_internal_user = {user}
default_login_user = {user}
default_internal_group = {group}
first_valid_uid = 1
first_valid_gid = 0
mail_location = maildir:{home}/mail/%u
mail_max_userip_connections = 200
disable_plaintext_auth = no
auth_mechanisms = plain login xoauth2
auth_failure_delay = 0
ssl = yes
ssl_cert = <{home}/cert.pem
ssl_key = <{home}/key.pem
ssl_dh =
imap_capability = {capability}
imap_idle_notify_interval = 2 mins
service anvil {{
  chroot =
  unix_listener anvil-auth-penalty {{
    mode = 0
  }}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = {port}
  }}
  inet_listener imaps {{
    port = {tls_port}
    ssl = yes
  }}
}}
service stats {{
  chroot =
}}
passdb {{
  driver = oauth2
  mechanisms = xoauth2
  args = {home}/oauth2.conf
}}
passdb {{
  driver = static
  mechanisms = plain login
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={home}/home/%u
}}
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Drafts {{
    auto = create
    special_use = \\Drafts
  }}
  mailbox Sent {{
    auto = create
    special_use = \\Sent
  }}
}}
"""


_OAUTH2 = """
introspection_mode = local
local_validation_key_dict = fs:posix:prefix={home}/keys/
username_attribute = sub
"""
_TOKEN_KEY = b"key-of-the-test-key-of-the-test-key"


def access_token(user: str, *, valid_s: int = 3600, key: bytes = _TOKEN_KEY) -> str:
    """A token (JWT, HS256) that the server takes of `user`, unless it has expired or is under another key."""
    now = int(time.time())
    claims = {"sub": user, "iat": now - 10, "nbf": now - 10, "exp": now + valid_s}
    parts = [orjson.dumps(each) for each in ({"typ": "JWT", "alg": "HS256"}, claims)]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    signature = base64.urlsafe_b64encode(hmac.digest(key, signed, "sha256")).rstrip(b"=")
    return f"{signed.decode()}.{signature.decode()}"


@dataclass(frozen=True, slots=True)
class Dovecot:
    """A running server. Every user name has a mailbox of its own, all with `PASSWORD`, or an `access_token`
    by XOAUTH2."""

    home: Path
    port: int
    tls_port: int
    process: subprocess.Popen[bytes]

    @property
    def certificate(self) -> Path:
        """Self-signed, for `localhost`."""
        return self.home / "cert.pem"

    @contextlib.contextmanager
    def client(self, user: str) -> Iterator[IMAPClient]:
        with IMAPClient("127.0.0.1", self.port, ssl=False) as client:
            client.login(user, PASSWORD)
            yield client

    def deliver(self, user: str, *messages: bytes, folder: str = "INBOX") -> None:
        """As a delivery agent does: unseen, at the end of the folder."""
        with self.client(user) as client:
            for message in messages:
                client.append(folder, message)

    def messages(self, user: str, folder: str) -> list[bytes]:
        """Whole messages in the order of their UIDs."""
        with self.client(user) as client:
            client.select_folder(folder, readonly=True)
            found = client.fetch(client.search(), ["BODY.PEEK[]"])
            return [bytes(found[uid][b"BODY[]"]) for uid in sorted(found)]

    def flags(self, user: str, folder: str = "INBOX") -> list[set[str]]:
        """Of each message, in the order of their UIDs."""
        with self.client(user) as client:
            client.select_folder(folder, readonly=True)
            found = client.get_flags(client.search())
            return [{flag.decode() for flag in found[uid]} - {"\\Recent"} for uid in sorted(found)]

    def close(self, user: str, folder: str) -> None:
        """The folder is listed, and cannot be opened any more."""
        (self.home / "mail" / user / f".{folder}").chmod(0)

    def renumber(self, user: str) -> None:
        """Another UIDVALIDITY and other UIDs of INBOX, as after a restored backup; the mails stay."""
        folder = self.home / "mail" / user
        uids = folder / "dovecot-uidlist"
        for index in folder.glob("dovecot.index*"):
            index.unlink()
        first, *rest = uids.read_text().splitlines()
        fields = [f"V{int(part[1:]) + 1000}" if part.startswith("V") else part for part in first.split()]
        fields = [f"N{int(part[1:]) + 5000}" if part.startswith("N") else part for part in fields]
        moved = []
        for line in rest:
            uid, _, name = line.partition(" ")
            moved.append(f"{int(uid) + 4000} {name}")
        uids.write_text("\n".join([" ".join(fields), *moved]) + "\n")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(timeout=10)


@contextlib.contextmanager
def running_dovecot(*, idle: bool = True) -> Iterator[Dovecot]:
    """Without `idle` the server does not tell the capability IDLE."""
    binary = shutil.which("dovecot") or "/usr/sbin/dovecot"
    assert Path(binary).exists(), "these tests need Dovecot: apt-get install dovecot-imapd"
    user = "nobody" if os.getuid() == 0 else getpass.getuser()
    account = pwd.getpwnam(user)
    home = Path(tempfile.mkdtemp(prefix="flow-engine-dovecot-"))
    server: Dovecot | None = None
    try:
        server = _started(binary, home, account, idle=idle)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(home, ignore_errors=True)


def _started(binary: str, home: Path, account: pwd.struct_passwd, *, idle: bool) -> Dovecot:
    make_certificate(home)
    port, tls_port = free_port(), free_port()
    group = subprocess.run(["id", "-gn", account.pw_name], capture_output=True, text=True, check=True)
    (home / "dovecot.conf").write_text(
        _CONFIG.format(
            home=home,
            user=account.pw_name,
            group=group.stdout.strip(),
            port=port,
            tls_port=tls_port,
            password=PASSWORD,
            capability="" if idle else "IMAP4rev1 SASL-IR LITERAL+ UIDPLUS MOVE SPECIAL-USE",
        )
    )
    (home / "oauth2.conf").write_text(_OAUTH2.format(home=home))
    for folder in ("run", "state", "mail", "home", "keys/default/HS256"):
        (home / folder).mkdir(parents=True)
    (home / "keys/default/HS256/default").write_bytes(base64.b64encode(_TOKEN_KEY))
    for place in (home, *home.rglob("*")):
        if os.getuid() == 0:
            os.chown(place, account.pw_uid, account.pw_gid)
    home.chmod(0o755)
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [binary, "-F", "-c", str(home / "dovecot.conf")], stdout=output, stderr=output, cwd=home
        )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as probe:
            probe.settimeout(2)
            if probe.recv(64).startswith(b"* OK"):
                return Dovecot(home, port, tls_port, process)
        time.sleep(0.05)
    process.kill()
    process.wait(timeout=10)
    log = home / "log"
    told = (home / "output").read_text() + (log.read_text() if log.exists() else "")
    raise RuntimeError(f"no Dovecot on port {port}: {told}")


def make_certificate(home: Path) -> None:
    """`cert.pem` and `key.pem` in a folder that exists: self-signed, for localhost and 127.0.0.1."""
    request = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *request, *names, "-keyout", home / "key.pem", "-out", home / "cert.pem"],
        check=True,
        capture_output=True,
    )
