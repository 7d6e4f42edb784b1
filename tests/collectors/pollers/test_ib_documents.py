"""The fabric's own tools as they are run: which, with what, and what one that fails costs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from collectors.pollers import ib_documents
from collectors.pollers.command import CommandError
from collectors.pollers.device import DeviceReading
from collectors.pollers.ib_cluster import IbClusterPoller, from_config
from tests.collectors.pollers import fabric_texts
from tests.collectors.pollers.fabric_texts import Model
from tests.collectors.pollers.test_ib_cluster import LEAF, value


def fake_tools(folder: Path, bodies: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in bodies.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def polled(poller: IbClusterPoller) -> Sequence[DeviceReading]:
    return list(poller.poll(0.0))


def test_the_tools_are_run_and_none_of_them_resets_a_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model(errors={(0, 1): {"SymbolErrorCounter": 3}})
    (tmp_path / "net").write_text(fabric_texts.ibnetdiscover(model))
    (tmp_path / "link").write_text(fabric_texts.iblinkinfo(model))
    (tmp_path / "errors").write_text(fabric_texts.ibqueryerrors(model))
    (tmp_path / "data").write_text(fabric_texts.counters(model))
    log = f'echo "$0 $*" >> {tmp_path}/asked;'
    fake_tools(
        tmp_path,
        {
            "ibnetdiscover": f"{log} cat {tmp_path}/net",
            "iblinkinfo": f"{log} cat {tmp_path}/link",
            "ibqueryerrors": f'{log} case "$*" in *--counters*) cat {tmp_path}/data;; '
            f"*) cat {tmp_path}/errors; echo 'query failed on ib-leaf-01, Lid 2 port 3' >&2; exit 1;; esac",
        },
        monkeypatch,
    )
    told = polled(from_config({"ca": "mlx5_0", "ca_port": 1}, tmp_path))
    leaf = next(one for one in told if one.device.name == LEAF)
    assert not told[0].reading.events
    assert value(leaf, 1, "symbol_error_total") == (3, "ok")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.removeprefix(f"{tmp_path}/") for line in asked] == [
        "ibnetdiscover -C mlx5_0 -P 1",
        "iblinkinfo --switches-only -C mlx5_0 -P 1",
        "ibqueryerrors --switch --threshold-file /dev/null -C mlx5_0 -P 1",
        "ibqueryerrors --switch --counters -C mlx5_0 -P 1",
    ]


def test_a_port_that_the_tool_complains_of_has_no_zero_and_the_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").write_text(fabric_texts.ibnetdiscover(Model()))
    (tmp_path / "errors").write_text(fabric_texts.ibqueryerrors(Model(), failures=1))
    words = "ibwarn: [77] print_errors: IB_GSI_PORT_COUNTERS query failed on ib-leaf-01, Lid 2 port 3"
    bodies = {
        "ibnetdiscover": f"cat {tmp_path}/net",
        "ibqueryerrors": f"echo '{words}' >&2; cat {tmp_path}/errors",
    }
    fake_tools(tmp_path, bodies, monkeypatch)
    told = polled(from_config({"documents": ["ibnetdiscover", "ibqueryerrors"]}, tmp_path))
    known = {
        one.entity for each in told for one in each.reading.samples if one.metric == "symbol_error_total"
    }
    assert f"switchport/{LEAF}/3" in known
    assert "switchport/ib-leaf-01/2" in known
    assert "switchport/ib-leaf-01/3" not in known


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("sleep 60", "timeout"),
        ("echo 'iberror: failed: discover failed' >&2; exit 255", "iberror: failed: discover failed"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_tool_that_hangs_or_fails_costs_one_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    fake_tools(tmp_path, {"ibnetdiscover": body}, monkeypatch)
    ask = ib_documents.from_commands((), (), ["ibnetdiscover"], 0.2)
    with pytest.raises(CommandError, match=words):
        polled(IbClusterPoller("ib", ask))


def test_a_tool_that_is_not_there_is_named(tmp_path: Path) -> None:
    poller = from_config({"prefix": [str(tmp_path / "none")]}, tmp_path)
    with pytest.raises(CommandError, match="none: No such file"):
        polled(poller)
