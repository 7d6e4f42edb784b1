"""The emulator of sushy-tools as a BMC: TLS, HTTP basic authentication, its own Redfish tree."""

from __future__ import annotations

import hashlib
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from collectors.pollers.device import DeviceReading
from collectors.pollers.redfish import from_config

bcrypt = pytest.importorskip("bcrypt")
pytest.importorskip("sushy_tools")
START_S = 30.0


@dataclass
class Emulator:
    """A running emulator. ``folder`` holds its certificate's authority and a password."""

    port: int
    folder: Path
    fingerprint: str

    def look(self, **settings: object) -> DeviceReading:
        target = {
            "name": "emulated", "address": f"https://127.0.0.1:{self.port}", "node": "gtn-0101",
            "user": "admin", "password_file": "password",
        } | settings  # fmt: skip
        (found,) = from_config({"targets": [target]}, self.folder).poll(0.0)
        return found


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    folder = tmp_path_factory.mktemp("emulator")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    secret = folder / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    (folder / "wrong").write_text("other\n")
    (folder / "wrong").chmod(0o600)
    hashed = bcrypt.hashpw(b"s3cret", bcrypt.gensalt(rounds=4)).decode()
    (folder / "auth").write_text(f"admin:{hashed}\n")
    (folder / "emulator.conf").write_text(f"SUSHY_EMULATOR_AUTH_FILE = {str(folder / 'auth')!r}\n")
    der = ssl.PEM_cert_to_DER_cert((folder / "cert.pem").read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-c", "from sushy_tools.emulator.main import main; main()", "--fake",
                "-i", "127.0.0.1", "-p", str(port), "--config", str(folder / "emulator.conf"),
                "--ssl-certificate", str(folder / "cert.pem"), "--ssl-key", str(folder / "key.pem"),
            ],
            stdout=log, stderr=log, cwd=folder,
        )  # fmt: skip
    try:
        assert listens(port, process), (folder / "log").read_text()
        yield Emulator(port, folder, hashlib.sha256(der).hexdigest())
    finally:
        process.terminate()
        process.wait(10)


def listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    end_s = time.monotonic() + START_S
    while time.monotonic() < end_s and process.poll() is None:
        with socket.socket() as asking:
            if asking.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.05)
    return False


def test_its_chassis_system_and_manager_are_read(emulator: Emulator) -> None:
    found = emulator.look(ca_file="ca.pem")
    assert (found.state, found.node) == ("ok", "gtn-0101")
    values = {(one.entity.partition(".")[2], one.metric): one.value for one in found.reading.samples}
    assert values["CPU Temp", "temperature_c"] == 41
    assert values["Chassis Intake Temp", "temperature_c"] == 25
    assert values["BaseBoard System Fan", "speed_rpm"] == 2100
    of_bmc = {one.metric: one.value for one in found.reading.samples if one.entity == "bmc/emulated"}
    assert of_bmc["powered_on_count"] == 0
    assert of_bmc["unreadable_count"] == 1  # its firmware inventory is a link to nothing
    chassis = {one.labels.get("serial") for one in found.reading.samples if one.metric == "part_count"}
    assert "437XR1138R2" in chassis
    assert found.reading.events == []


def test_its_certificate_is_accepted_by_its_own_fingerprint_only(emulator: Emulator) -> None:
    spelt = ":".join(emulator.fingerprint.upper()[at : at + 2] for at in range(0, 64, 2))
    assert emulator.look(fingerprint=spelt).state == "ok"
    assert emulator.look(fingerprint="0" * 64).state == "tls_failed"
    assert emulator.look().state == "tls_failed"
    assert emulator.look(insecure=True).state == "ok"


def test_a_wrong_password_is_told(emulator: Emulator) -> None:
    assert emulator.look(ca_file="ca.pem", password_file="wrong").state == "auth_failed"


def test_one_without_sessions_tells_so(emulator: Emulator) -> None:
    assert emulator.look(ca_file="ca.pem", auth="session").state in ("auth_failed", "http_404", "http_405")
