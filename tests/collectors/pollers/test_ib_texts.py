"""The fabric tools' words: what is no such text, is cut or lies costs itself only."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from collectors.pollers import ib_counters, ib_link_states, ib_topology
from collectors.pollers.ib_counters import KINDS
from tests.collectors.pollers import fabric_texts
from tests.collectors.pollers.fabric_texts import Model

TEXT = fabric_texts.ibnetdiscover(Model()).encode()
STATES = fabric_texts.iblinkinfo(Model()).encode()
WORDS = st.text(alphabet='SHCaw[]"-#()x4NDR=\\ >/GUIDport:0123456789 \t\n', max_size=400).map(str.encode)


@given(WORDS | st.binary(max_size=300))
def test_garbage_gives_no_error_and_bounded_values(said: bytes) -> None:
    ib_topology.parsed(said)
    ib_link_states.parsed(said)
    found = ib_counters.read(said, said, is_errors=True)
    for key, ports in found.lines.items():
        for port in ports:
            assert 0 < port <= ib_topology.PORT_MAX
            for count in found.counts([key], port).values():
                assert count.value is None or 0 <= count.value < 2**66


@given(st.integers(0, len(TEXT)), st.binary(max_size=20))
def test_a_damaged_topology_still_tells_the_lines_before(at: int, damage: bytes) -> None:
    found = ib_topology.parsed(TEXT[:at] + damage)
    whole = ib_topology.parsed(TEXT)
    lines = TEXT[:at].count(b"\n[")
    assert sum(len(one.ends) for one in found.switches.values()) <= lines + 1 + damage.count(b"\n")
    assert len(found.switches) <= len(whole.switches) + 1


@given(st.integers(0, 2**64 - 1), st.sampled_from(sorted(KINDS)))
def test_a_wide_counter_keeps_its_value(value: int, ours: str) -> None:
    theirs = next(name for name, (own, _) in ib_counters._ERRORS.items() if own == ours)
    text = f"   GUID 0x1 port 1: [{theirs} == {value} (1.000Ki)]\n"
    assert ib_counters.read(text.encode()).counts(["0000000000000001"], 1)[ours].value == value


def test_a_port_of_absurd_number_or_value_is_not_taken() -> None:
    row = "   GUID 0x1 port {}: [PortXmitWait == {} (1.000)]\n"
    text = row.format(255, 1) + row.format(3, "9" * 20)
    found = ib_counters.read(text.encode())
    assert list(found.lines["0000000000000001"]) == [3]
    assert found.counts(["0000000000000001"], 3)["port_xmit_wait"].quality == "out_of_range"


def test_states_are_read_in_both_forms() -> None:
    below = ib_link_states.parsed(STATES)
    assert below == ib_link_states.parsed(fabric_texts.iblinkinfo(Model(), in_lines=True).encode())
    assert below["b83fd20300000001"][1].is_up
    assert below["b83fd20300000001"][8].physical == "Polling"


def test_a_speed_in_unknown_words_does_not_hide_the_state() -> None:
    for words in (" 4X      undefined (512)", " 4X  10.0 Gbps (FDR10)", "12X               2.5 Gbps"):
        line = f'Switch: 0x1 sw:\n      1    7[  ] ==({words} Active/  LinkUp)==>      4    1[  ] "a b" ( )\n'
        assert ib_link_states.parsed(line.encode())["0000000000000001"][7].is_up, words


def test_a_name_that_looks_like_a_port_changes_nothing() -> None:
    model = Model(rename={0: "x 9[  ] ==(  Down/ Polling)==>"})
    assert 9 not in ib_link_states.parsed(fabric_texts.iblinkinfo(model).encode())["b83fd20300000001"]
