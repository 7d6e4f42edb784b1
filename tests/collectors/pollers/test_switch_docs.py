"""What the documents say of the switch pollers is what they do; the example of their settings is one."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from collectors.pollers import DEVICE_POLLERS
from tests.collectors.fakes import REPO

TEXT = (REPO / "docs/sources.md").read_text(encoding="utf-8")
SECTION = TEXT[TEXT.index("## Pollers of devices") :]
SWITCHES = sorted(name for name in DEVICE_POLLERS if name.startswith("switch_"))


@pytest.mark.parametrize("name", SWITCHES)
def test_the_example_is_accepted_and_the_period_is_the_real_one(name: str, tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", SECTION, re.S)
    assert example is not None
    config = tomllib.loads(example[1])[name]
    for key in config:
        if key.endswith("_file"):
            (tmp_path / config[key]).write_text("a-long-secret\n", encoding="utf-8")
            (tmp_path / config[key]).chmod(0o600)
    poller = import_module(DEVICE_POLLERS[name]).from_config(config, tmp_path)
    row = re.search(rf"^\| `{name}` \| [^|]+ \| (\d+) s", SECTION, re.M)
    assert row is not None
    assert (poller.name, poller.period_s) == (name, float(row[1]))
    poller.close()
