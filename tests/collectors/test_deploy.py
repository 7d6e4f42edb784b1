"""The files that install the agent: they parse, and name only settings and commands that exist."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from collectors import config, poll

DEPLOY = Path(__file__).parents[2] / "deploy"
SETTINGS = {f"CLUSTERWATCH_{name.upper()}" for name in config._SETTINGS} | {"CLUSTERWATCH_TOKEN_FILE"}


@pytest.mark.parametrize("path", sorted(DEPLOY.iterdir()), ids=lambda path: path.name)
def test_settings_exist(path: Path) -> None:
    named = set(re.findall(r"CLUSTERWATCH_[A-Z_]+", path.read_text()))
    assert named and named <= SETTINGS


def test_the_unit_runs_the_agent_and_bounds_it() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "clusterwatch-agent.service")
    service = unit["Service"]
    assert service["ExecStart"].split()[-2:] == ["/opt/clusterwatch/bin/clusterwatch-agent", "run"]
    assert {"CPUQuota", "MemoryMax", "OOMScoreAdjust", "Nice"} <= set(service)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (verify := shutil.which("systemd-analyze")) is None:
        pytest.skip("no systemd-analyze on this machine")
    text = (
        (DEPLOY / "clusterwatch-agent.service")
        .read_text()
        .replace("/opt/clusterwatch/bin/clusterwatch-agent", "/bin/true")
    )
    unit = tmp_path / "clusterwatch-agent.service"
    unit.write_text(text)
    done = subprocess.run([verify, "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    assert str(unit) not in done.stderr and "clusterwatch-agent" not in done.stderr, done.stderr


def test_the_daemon_set_mounts_what_it_names() -> None:
    told = yaml.safe_load((DEPLOY / "clusterwatch-agent.daemonset.yaml").read_text())
    spec = told["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert told["kind"] == "DaemonSet" and container["command"] == ["clusterwatch-agent", "run"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in spec["volumes"]
    }
    assert told["spec"]["selector"]["matchLabels"] == told["spec"]["template"]["metadata"]["labels"]
    assert spec["hostPID"] and not container["securityContext"]["allowPrivilegeEscalation"]


def test_the_pollers_of_the_example_can_be_made_once_its_secrets_are_there(tmp_path: Path) -> None:
    text = (DEPLOY / "pollers.toml").read_text()
    (tmp_path / "pollers.toml").write_text(text)
    for name in re.findall(r'_file = "([^"]+)"', text):
        (tmp_path / name).write_text("long-enough-secret")
        (tmp_path / name).chmod(0o600)
    pollers = poll.load(tmp_path / "pollers.toml")
    names = ["switch_snmp", "switch_fboss", "redfish", "ib_cluster", "ufm", "slurm_cluster"]
    assert [poller.name for poller in pollers] == names
    for poller in pollers:
        poller.close()
