"""Trees as BMCs serve them: a node of the new schemas with an HGX board, an old one, a power shelf."""

from __future__ import annotations

from typing import Any

V1 = "/redfish/v1"


def ref(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def collection(path: str, members: list[dict[str, Any]], inline: bool = False) -> dict[str, Any]:
    """A collection; its members as links, or whole as a log's are."""
    rows = members if inline else [ref(member["@odata.id"]) for member in members]
    return {"@odata.id": path, "Name": "Collection", "Members@odata.count": len(members), "Members": rows}


def resource(path: str, **fields: Any) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    ok = {"State": "Enabled", "Health": "OK"}
    return {"@odata.id": path, "Id": name, "Name": name, "Status": ok} | fields


def placed(*resources: dict[str, Any]) -> dict[str, Any]:
    return {one["@odata.id"]: one for one in resources}


def many(path: str, members: list[dict[str, Any]], inline: bool = False) -> dict[str, Any]:
    """A collection with its members, by path."""
    return {path: collection(path, members, inline)} | ({} if inline else placed(*members))


def root(**links: Any) -> dict[str, Any]:
    return {V1: {"@odata.id": f"{V1}/", "RedfishVersion": "1.17.0", "Name": "Root Service"} | links}


def bad(health: str = "Critical", state: str = "Enabled") -> dict[str, str]:
    return {"State": state, "Health": health}


def log_entry(number: int | str, severity: str = "OK", **fields: Any) -> dict[str, Any]:
    return {
        "@odata.id": f"{V1}/Systems/system/LogServices/SEL/Entries/{number}", "Id": str(number),
        "Created": "2026-12-02T10:00:00Z", "Severity": severity, "EntryType": "SEL",
        "Message": f"entry {number}", "MessageId": "OpenBMC.0.1.SensorThreshold",
    } | fields  # fmt: skip


def log_tree(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """``Systems/system`` with a SEL."""
    services = f"{V1}/Systems/system/LogServices"
    service = resource(f"{services}/SEL", LogEntryType="SEL", Entries=ref(f"{services}/SEL/Entries"))
    dump = resource(f"{services}/Dump", Entries=ref(f"{services}/Dump/Entries"))
    system = resource(
        f"{V1}/Systems/system", PowerState="On", SerialNumber="SYS1", Model="GT", BiosVersion="F0C",
        LogServices=ref(services),
    )  # fmt: skip
    return (
        many(f"{V1}/Systems", [system])
        | many(services, [service, dump])
        | many(f"{services}/SEL/Entries", entries, inline=True)
    )


def node() -> dict[str, Any]:
    """A node of eight GPUs (two shown): new schemas, OpenBMC's way."""
    chassis, hgx = f"{V1}/Chassis/chassis", f"{V1}/Chassis/HGX_GPU_SXM_1"
    power, thermal = f"{chassis}/PowerSubsystem", f"{chassis}/ThermalSubsystem"
    supplies = [
        resource(
            f"{power}/PowerSupplies/PSU{n}", Metrics=ref(f"{power}/PowerSupplies/PSU{n}/Metrics"),
            SerialNumber=f"S{n}", Model="PWR-3000", FirmwareVersion="1.2", PowerCapacityWatts=3000,
        )
        for n in (0, 1)
    ]  # fmt: skip
    fans = [
        resource(f"{thermal}/Fans/FAN{n}", SpeedPercent={"Reading": 43.0, "SpeedRPM": 9100 + n})
        for n in (0, 1)
    ]
    hgx_sensors = [
        resource(
            f"{hgx}/Sensors/HGX_GPU_SXM_1_TEMP_0", Reading=61.5, ReadingType="Temperature",
            Thresholds={"UpperCritical": {"Reading": 95.0}, "UpperCaution": {"Reading": 88.0}},
        ),
        resource(f"{hgx}/Sensors/HGX_GPU_SXM_1_Power_0", Reading=612.0, ReadingType="Power"),
        resource(f"{hgx}/Sensors/HGX_GPU_SXM_1_Energy_0", Reading=2.5e9, ReadingType="EnergyJoules"),
    ]  # fmt: skip
    tree = root(
        Chassis=ref(f"{V1}/Chassis"), Systems=ref(f"{V1}/Systems"), Managers=ref(f"{V1}/Managers"),
        UpdateService=ref(f"{V1}/UpdateService"),
    )  # fmt: skip
    tree |= many(
        f"{V1}/Chassis",
        [
            resource(
                chassis, SerialNumber="CH1", Model="GT", PowerSubsystem=ref(power),
                ThermalSubsystem=ref(thermal), EnvironmentMetrics=ref(f"{chassis}/EnvironmentMetrics"),
            ),
            resource(hgx, SerialNumber="GPU1", Sensors=ref(f"{hgx}/Sensors")),
        ],
    )  # fmt: skip
    tree |= placed(
        resource(power, PowerSupplies=ref(f"{power}/PowerSupplies")),
        resource(thermal, Fans=ref(f"{thermal}/Fans"), ThermalMetrics=ref(f"{thermal}/ThermalMetrics")),
        resource(
            f"{thermal}/ThermalMetrics",
            TemperatureReadingsCelsius=[
                {"DataSourceUri": f"{chassis}/Sensors/inlet", "DeviceName": "Inlet", "Reading": 24.5}
            ],
        ),
        resource(f"{chassis}/EnvironmentMetrics", PowerWatts={"Reading": 5230.0}, EnergykWh={"Reading": 1.5}),
        resource(f"{V1}/UpdateService", FirmwareInventory=ref(f"{V1}/UpdateService/FirmwareInventory")),
    )
    tree |= many(f"{power}/PowerSupplies", supplies) | many(f"{thermal}/Fans", fans)
    tree |= many(f"{hgx}/Sensors", hgx_sensors)
    tree |= placed(
        *(
            resource(
                f"{power}/PowerSupplies/PSU{n}/Metrics", InputPowerWatts={"Reading": 2600.0 + n},
                OutputPowerWatts={"Reading": 2500.0}, InputVoltage={"Reading": 230.0},
                TemperatureCelsius={"Reading": 41.0},
            )
            for n in (0, 1)
        )
    )  # fmt: skip
    tree |= many(
        f"{V1}/Managers",
        [resource(f"{V1}/Managers/bmc", FirmwareVersion="24.10", DateTime="2026-12-02T10:00:00+00:00")],
    )
    tree |= many(
        f"{V1}/UpdateService/FirmwareInventory",
        [resource(f"{V1}/UpdateService/FirmwareInventory/HGX_FW_NVSwitch_0", Version="96.10.6D.00.01")],
    )
    return tree | log_tree([log_entry(1), log_entry(2, "Critical", Message="old")])


def old_node() -> dict[str, Any]:
    """Power and Thermal of the old schemas, as iDRAC and iLO have them; numbers may be text."""
    chassis = f"{V1}/Chassis/System.Embedded.1"
    tree = root(Chassis=ref(f"{V1}/Chassis"))
    tree |= many(
        f"{V1}/Chassis",
        [resource(chassis, Power=ref(f"{chassis}/Power"), Thermal=ref(f"{chassis}/Thermal"))],
    )
    return tree | placed(
        resource(
            f"{chassis}/Power",
            PowerControl=[
                {"MemberId": "0", "Name": "Server", "PowerConsumedWatts": "590",
                 "PowerLimit": {"LimitInWatts": 1600}},
            ],
            PowerSupplies=[
                {"MemberId": "PSU.Slot.1", "Name": "PS1 Status", "PowerInputWatts": 300,
                 "LastPowerOutputWatts": 290, "LineInputVoltage": 230, "SerialNumber": "CN1",
                 "Status": {"State": "Enabled", "Health": "OK"}},
                {"MemberId": "PSU.Slot.2", "Name": "PS2 Status", "PowerInputWatts": None,
                 "LineInputVoltage": 0, "LineInputStatus": "LossOfInput",
                 "Status": {"State": "UnavailableOffline", "Health": "Critical"}},
                {"MemberId": "PSU.Slot.3", "Name": "PS3 Status", "Status": {"State": "Absent"}},
            ],
        ),
        resource(
            f"{chassis}/Thermal",
            Temperatures=[
                {"MemberId": "0", "Name": "Inlet Temp", "ReadingCelsius": 46, "UpperThresholdNonCritical": 42,
                 "UpperThresholdCritical": 47, "Status": {"State": "Enabled", "Health": "Warning"}},
                {"MemberId": "1", "Name": "CPU Temp", "ReadingCelsius": 255, "UpperThresholdCritical": 100,
                 "Status": {"State": "Enabled", "Health": "OK"}},
                {"MemberId": "2", "Name": "CPU Temp", "ReadingCelsius": None, "UpperThresholdCritical": 0,
                 "Status": {"State": "StandbyOffline"}},
            ],
            Fans=[
                {"MemberId": "0", "FanName": "F1", "Name": "Fan 1", "Reading": 0, "ReadingUnits": "RPM",
                 "LowerThresholdCritical": 600, "Status": {"State": "Enabled", "Health": "OK"}},
                {"MemberId": "1", "Name": "Fan 2", "Reading": 30, "ReadingUnits": "Percent",
                 "Status": {"State": "Enabled", "Health": "OK"}},
            ],
        ),
    )  # fmt: skip


def shelf(supplies: int = 6) -> dict[str, Any]:
    """An OpenRack power shelf with its batteries, behind a BMC of its own."""
    path = f"{V1}/PowerEquipment/PowerShelves/1"
    tree = root(PowerEquipment=ref(f"{V1}/PowerEquipment"))
    tree |= placed(
        resource(f"{V1}/PowerEquipment", PowerShelves=ref(f"{V1}/PowerEquipment/PowerShelves")),
        resource(f"{path}/Metrics", EnergykWh={"Reading": 810.25}),
    )
    tree |= many(
        f"{V1}/PowerEquipment/PowerShelves",
        [
            resource(
                path, Name="Shelf 1", SerialNumber="SH1", Metrics=ref(f"{path}/Metrics"),
                PowerSupplies=ref(f"{path}/PowerSupplies"), Batteries=ref(f"{path}/Batteries"),
                PowerSupplyRedundancy=[{"Status": {"State": "Enabled", "Health": "OK"}}],
            )
        ],
    )  # fmt: skip
    names = [f"PSU{n}" for n in range(1, supplies + 1)]
    tree |= many(
        f"{path}/PowerSupplies",
        [
            resource(f"{path}/PowerSupplies/{name}", Metrics=ref(f"{path}/PowerSupplies/{name}/Metrics"))
            for name in names
        ],
    )
    tree |= placed(
        *(
            resource(
                f"{path}/PowerSupplies/{name}/Metrics", InputPowerWatts={"Reading": 2000.0},
                InputVoltage={"Reading": 277.0}, OutputPowerWatts={"Reading": 1940.0},
                RailVoltage=[{"Reading": 50.1}],
            )
            for name in names
        )
    )  # fmt: skip
    tree |= many(
        f"{path}/Batteries",
        [
            resource(
                f"{path}/Batteries/BBU1", Metrics=ref(f"{path}/Batteries/BBU1/Metrics"),
                StateOfHealthPercent={"Reading": 97.0}, ChargeState="Idle", SerialNumber="B1",
            )
        ],
    )  # fmt: skip
    return tree | placed(
        resource(f"{path}/Batteries/BBU1/Metrics", ChargePercent={"Reading": 88.0}, DischargeCycles=4)
    )
