"""docker-compose.yml is valid and runs exactly what the supervisor runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose, PyOptions

from clusterwatch.ops.processes import Address, ProcessSpec, product_processes

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"
SERVERS = {"postgres", "valkey"}
ANY_HOST = "0.0.0.0"


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))
    return document


@pytest.fixture(scope="module")
def table() -> dict[str, ProcessSpec]:
    """The supervisor's table with the addresses containers use."""
    specs = product_processes(Address(ANY_HOST, 8642), Address(ANY_HOST, 8643), demo_gpus=512)
    return {spec.name: spec for spec in specs}


def validated(text: str) -> PyCompose:
    """Parses the text by the Compose specification; an unknown key or a volume nobody declared is refused."""
    document = PyOptions(apply_merge=True).from_yaml(text)
    document.validate()
    return document


def test_is_valid_by_the_compose_specification(table: dict[str, ProcessSpec]) -> None:
    document = validated(COMPOSE_FILE.read_text(encoding="utf-8"))
    assert set(document.service_names()) >= set(table)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("    command: [python, -m, collectors, run]", "    comand: [python]"), ("  state: {}", "  other: {}")],
)
def test_the_specification_refuses_a_wrong_file(right: str, wrong: str) -> None:
    text = COMPOSE_FILE.read_text(encoding="utf-8")
    assert right in text
    with pytest.raises(ValueError, match=r"comand|state"):
        validated(text.replace(right, wrong))


def test_has_a_service_for_each_process_and_no_other(
    compose: dict[str, Any], table: dict[str, ProcessSpec]
) -> None:
    assert set(compose["services"]) == set(table) | SERVERS


def test_each_command_is_the_supervisors(compose: dict[str, Any], table: dict[str, ProcessSpec]) -> None:
    commands = {name: tuple(compose["services"][name]["command"]) for name in table}
    assert commands == {name: spec.argv for name, spec in table.items()}


def test_what_must_end_first_is_waited_for(compose: dict[str, Any], table: dict[str, ProcessSpec]) -> None:
    once = {name for name, spec in table.items() if spec.once}
    assert once == {"bootstrap"}
    for name in set(table) - once:
        condition = compose["services"][name]["depends_on"]["bootstrap"]["condition"]
        assert condition == "service_completed_successfully"


def test_only_the_gateway_is_published_beyond_the_machine(compose: dict[str, Any]) -> None:
    published = {name: service.get("ports", []) for name, service in compose["services"].items()}
    assert {name for name, ports in published.items() if ports} == {"web", "gateway"}
    assert all(port.startswith("127.0.0.1:") for port in published["web"])


def test_no_secret_is_written_into_the_file(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, value in service.get("environment", {}).items():
            if "PASSWORD" in name or "SECRET" in name:
                assert value.startswith("${"), name
