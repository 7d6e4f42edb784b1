"""A fabric of leaves, spines and adapters in the words of ibnetdiscover, iblinkinfo and ibqueryerrors.

The forms are those that the tools of infiniband-diags 44 print of a fabric of ibsim.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Cable = tuple[int, int]
"""(switch, port)"""


@dataclass
class Model:
    """Switches 0 to ``leaves`` are leaves, the rest spines; adapter N is on leaf N / ``down``.

    Attributes:
        cut: switch ports without a link; their cable's other end has none, too.
        width: (switch, port) -> lanes, where they are not four.
        errors: (switch, port) -> the tool's name -> value.
    """

    leaves: int = 2
    spines: int = 1
    down: int = 2
    ports: int = 8
    cut: set[Cable] = field(default_factory=set)
    gone: set[int] = field(default_factory=set)
    width: dict[Cable, int] = field(default_factory=dict)
    errors: dict[Cable, dict[str, int]] = field(default_factory=dict)
    data: dict[Cable, int] = field(default_factory=dict)
    rename: Mapping[int, str] = field(default_factory=dict)

    def switches(self) -> list[int]:
        return [one for one in range(self.leaves + self.spines) if one not in self.gone]

    def guid(self, switch: int) -> int:
        return 0xB83FD20300000000 + switch * 0x100

    def words(self, switch: int) -> str:
        kind, number = ("leaf", switch) if switch < self.leaves else ("spine", switch - self.leaves)
        return self.rename.get(switch) or f"MF0;ib-{kind}-{number:02d}:MQM9700/U1"

    def adapter(self, number: int) -> int:
        return 0xE8EBD30300700000 + number * 0x10

    def adapter_words(self, number: int) -> str:
        return self.rename.get(-1 - number) or f"gtn-{number // 8 + 101:04d} mlx5_{number % 8}"

    def ends(self, switch: int) -> Iterator[tuple[int, int, int]]:
        """(port, switch or -1 - adapter, its port)"""
        if switch < self.leaves:
            for place in range(self.down):
                yield place + 1, -1 - (switch * self.down + place), 1
            for spine in range(self.spines):
                yield self.down + spine + 1, self.leaves + spine, switch + 1
        else:
            for leaf in range(self.leaves):
                yield leaf + 1, leaf, self.down + switch - self.leaves + 1

    def linked(self, switch: int) -> list[tuple[int, int, int]]:
        return [
            (port, far, far_port)
            for port, far, far_port in self.ends(switch)
            if (switch, port) not in self.cut and (far, far_port) not in self.cut and far not in self.gone
        ]


def ibnetdiscover(model: Model) -> str:
    lines = ["#", "# Topology file: generated on Thu Dec  3 05:51:20 2026", "#", ""]
    for switch in model.switches():
        guid = model.guid(switch)
        lines += [
            "vendid=0x2c9",
            "devid=0xd2f2",
            f"sysimgguid=0x{guid:x}",
            f"switchguid=0x{guid:x}({guid + 1:x})",
            f'Switch\t{model.ports} "S-{guid:016x}"\t\t# "{model.words(switch)}" '
            f"enhanced port 0 lid {switch + 1} lmc 0",
        ]
        for port, far, far_port in model.linked(switch):
            width = model.width.get((switch, port), 4)
            if far >= 0:
                lines.append(
                    f'[{port}]\t"S-{model.guid(far):016x}"[{far_port}]\t\t'
                    f'# "{model.words(far)}" lid {far + 1} {width}xNDR'
                )
            else:
                adapter = model.adapter(-1 - far)
                lines.append(
                    f'[{port}]\t"H-{adapter:016x}"[1]({adapter + 1:x}) \t\t'
                    f'# "{model.adapter_words(-1 - far)}" lid {9_000 - far} {width}xNDR'
                )
        lines.append("")
    for switch in model.switches():
        for port, far, _ in model.linked(switch):
            if far >= 0:
                continue
            adapter = model.adapter(-1 - far)
            lines += [
                "vendid=0x2c9",
                "devid=0x1021",
                f"sysimgguid=0x{adapter:x}",
                f"caguid=0x{adapter:x}",
                f'Ca\t1 "H-{adapter:016x}"\t\t# "{model.adapter_words(-1 - far)}"',
                f'[1]({adapter + 1:x}) \t"S-{model.guid(switch):016x}"[{port}]\t\t'
                f'# lid {9_000 - far} lmc 0 "{model.words(switch)}" lid {switch + 1} 4xNDR',
                "",
            ]
    return "\n".join(lines)


def iblinkinfo(model: Model, in_lines: bool = False, could_be: Mapping[Cable, str] | None = None) -> str:
    lines = []
    for switch in model.switches():
        linked = {port: (far, far_port) for port, far, far_port in model.linked(switch)}
        if not in_lines:
            lines.append(f"Switch: 0x{model.guid(switch) + 1:016x} {model.words(switch)}:")
        start = f'0x{model.guid(switch) + 1:016x} "{model.words(switch):>30}" ' if in_lines else " " * 6
        for port in range(1, model.ports + 1):
            head = f"{start}{switch + 1:6d} {port:4d}[  ] =="
            if port not in linked:
                lines.append(f'{head}(                Down/ Polling)==>             [  ] "" ( )')
                continue
            far, far_port = linked[port]
            words = model.words(far) if far >= 0 else model.adapter_words(-1 - far)
            lacks = (could_be or {}).get((switch, port), " ")
            far_guid = (
                f"0x{model.guid(far) if far >= 0 else model.adapter(-1 - far):016x} " if in_lines else ""
            )
            lines.append(
                f"{head}({model.width.get((switch, port), 4):2d}X         106.25 Gbps Active/  LinkUp)==>  "
                f'{far_guid}{abs(far):6d} {far_port:4d}[  ] "{words}" ({lacks})'
            )
    return "\n".join(lines) + "\n"


def ibqueryerrors(model: Model, wide: bool = True, thresholds: str = " ", failures: int = 0) -> str:
    lines = []
    bad = 0
    for switch in model.switches():
        rows = []
        for port in range(1, model.ports + 1):
            found = model.errors.get((switch, port), {})
            told = "".join(
                f" [{name} == {value}{f' ({value:.3f})' if wide else ''}]"
                for name, value in found.items()
                if value
            )
            if told:
                rows.append(f"   GUID 0x{model.guid(switch) + 1:x} port {port}:{told}")
        if rows:
            lines.append(f'Errors for 0x{model.guid(switch) + 1:x} "{model.words(switch)}"')
            lines += [f"   GUID 0x{model.guid(switch) + 1:x} port ALL: [PortXmitDiscards == 5]", *rows]
            bad += 1
    lines += ["", f"## Summary: {len(model.switches())} nodes checked, {bad} bad nodes found"]
    lines.append(f"##          {model.ports} ports checked, 1 ports have errors beyond threshold")
    lines.append(f"## Thresholds:{thresholds}")
    if failures:
        lines.append(f"##          {failures} PMA query failures")
    return "\n".join([*lines, "## Suppressed:"]) + "\n"


def counters(model: Model) -> str:
    lines = []
    for switch in model.switches():
        lines.append(f'Data Counters for 0x{model.guid(switch):x} "{model.words(switch)}"')
        for port in range(1, model.ports + 1):
            words = model.data.get((switch, port), 1_000 * port)
            told = "".join(
                f" [{name} == {value} ({value:.3f}{unit})]"
                for name, value, unit in (
                    ("PortXmitData", words, "GB"),
                    ("PortRcvData", words // 2, "GB"),
                    ("PortXmitPkts", words // 8, ""),
                    ("PortRcvPkts", words // 16, ""),
                    ("PortUnicastXmitPkts", words // 8, ""),
                    ("PortUnicastRcvPkts", words // 16, ""),
                    ("PortMulticastXmitPkts", 0, ""),
                    ("PortMulticastRcvPkts", 0, ""),
                )
            )
            lines.append(f"   GUID 0x{model.guid(switch):x} port {port}:{told}")
    return (
        "\n".join(
            [*lines, "", "## Summary: 2 nodes checked, 0 bad nodes found", "## (null)", "## Suppressed:"]
        )
        + "\n"
    )
