"""What a node may do on a connection, end to end through a real socket, PostgreSQL and Valkey."""

from __future__ import annotations

import asyncio
import time
from random import Random

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from clusterwatch.accounts.models import Token
from clusterwatch.accounts.services import create_token, forget_node_binding, revoke_token
from clusterwatch.fleet.services import ensure_cluster
from clusterwatch.ingest.hub import Gateway
from collectors.wire import codec, limits, records
from tests.ingest.client import Node, event, hello, items, refusal
from tests.ingest.database import cursor_of, in_database, stored_texts

ASTRAL = [chr(code) for code in range(0x10000, 0x14000)]

# --- who may talk ---------------------------------------------------------------------------------


async def test_an_enrolled_node_comes_back_with_its_credential_alone(gateway: Gateway, node: Node) -> None:
    credential = node.welcome.credential
    assert credential is not None and credential.startswith("cw_n_")
    again = await Node.connect(gateway.url, hello(credential=credential))
    assert again.welcome.credential is None
    await again.close()


async def test_refuses_a_hello_without_any_proof(gateway: Gateway, enrolment: str) -> None:
    assert (await refusal(gateway.url, hello())).code == "bad_enrolment"


async def test_refuses_an_enrolment_token_of_another_cluster(gateway: Gateway, enrolment: str) -> None:
    def other() -> str:
        ensure_cluster("beta")
        return create_token("enrolment", "ingest", cluster="beta")[1]

    foreign = await in_database(other)
    assert (await refusal(gateway.url, hello(enrolment_token=foreign))).code == "bad_enrolment"


async def test_refuses_a_revoked_credential_and_does_not_enrol_it_again(
    gateway: Gateway, node: Node, enrolment: str
) -> None:
    await in_database(lambda: revoke_token(Token.objects.get(kind="node"), actor="test"))
    proofs = {"credential": node.welcome.credential, "enrolment_token": enrolment}
    assert (await refusal(gateway.url, hello(**proofs))).code == "revoked"
    assert (await refusal(gateway.url, hello(enrolment_token=enrolment))).code == "revoked"


async def test_a_name_stays_with_its_machine_until_an_operator_releases_it(
    gateway: Gateway, node: Node, enrolment: str
) -> None:
    thief = hello(enrolment_token=enrolment, machine_id="another")
    assert (await refusal(gateway.url, thief)).code == "foreign_machine"
    stolen = hello(credential=node.welcome.credential, machine_id="another")
    assert (await refusal(gateway.url, stolen)).code == "foreign_machine"
    await in_database(lambda: forget_node_binding("alpha", "n1", actor="test"))
    rebound = await Node.connect(gateway.url, thief)
    await rebound.close()


async def test_refuses_a_credential_of_another_node(gateway: Gateway, node: Node) -> None:
    answer = await refusal(gateway.url, hello(node="n2", credential=node.welcome.credential))
    assert answer.code == "bad_credential"


async def test_a_machine_that_lost_its_credential_enrols_again_and_the_old_one_ends(
    gateway: Gateway, node: Node, enrolment: str
) -> None:
    again = await Node.connect(gateway.url, hello(enrolment_token=enrolment))
    assert again.welcome.credential not in (None, node.welcome.credential)
    assert (await refusal(gateway.url, hello(credential=node.welcome.credential))).code == "revoked"
    await again.close()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"version": "2.0"}, "bad_version"),
        ({"version": "rubbish"}, "bad_version"),
        ({"node": ""}, "bad_hello"),
        ({"node": "n1\nFAKE LOG LINE"}, "bad_hello"),
        ({"rack": "a\u202eb"}, "bad_hello"),
        ({"gpus": [records.GpuIdentity(0), records.GpuIdentity(0)]}, "bad_hello"),
        ({"gpus": [records.GpuIdentity(-1)]}, "bad_hello"),
        ({"cpu_count": 2**40}, "bad_hello"),
        ({"simulated": True}, "bad_enrolment"),
        ({"cluster": "nowhere"}, "bad_enrolment"),
    ],
)
async def test_refuses_a_bad_hello_with_words(
    gateway: Gateway, enrolment: str, changes: dict[str, object], code: str
) -> None:
    answer = await refusal(gateway.url, hello(enrolment_token=enrolment, **changes))
    assert answer.code == code
    assert len(answer.reason) > 10


@pytest.mark.parametrize("raw", [b"", b"\xc1", b"GET / HTTP/1.1", b"\x81\xa1k\xa3put"])
async def test_refuses_bytes_that_are_no_message(gateway: Gateway, raw: bytes) -> None:
    assert (await refusal(gateway.url, raw)).code == "bad_hello"


async def test_refuses_a_first_message_that_is_no_hello(gateway: Gateway) -> None:
    assert (await refusal(gateway.url, records.Bye())).code == "bad_hello"


async def test_a_browser_cannot_connect(gateway: Gateway) -> None:
    with pytest.raises(InvalidStatus):
        await connect(gateway.url, origin="http://evil.example")  # type: ignore[arg-type]


async def test_a_newer_connection_of_a_node_replaces_the_old_one(gateway: Gateway, node: Node) -> None:
    newer = await Node.connect(gateway.url, hello(credential=node.welcome.credential))
    with pytest.raises(ConnectionClosed) as closed:
        await node.next()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 4000
    await newer.put("urgent", 1, [event(1)])
    await newer.acked("urgent", 1)
    await newer.close()


# --- records --------------------------------------------------------------------------------------


async def test_stores_events_and_acknowledges_after_the_commit(node: Node) -> None:
    await node.put("urgent", 1, [event(1), event(2), event(3)])
    await node.acked("urgent", 3)
    assert await stored_texts() == ["1", "2", "3"]
    cursor = await cursor_of("urgent")
    assert (cursor.sequence, cursor.stored_count) == (3, 3)


async def test_records_sent_again_are_stored_once(gateway: Gateway, node: Node) -> None:
    await node.put("urgent", 1, [event(1), event(2)])
    await node.acked("urgent", 2)
    again = await Node.connect(gateway.url, hello(credential=node.welcome.credential))
    assert again.welcome.acked == records.LaneNext(2, 0)
    # An agent that did not hear the acknowledgement would be told by the welcome; a stubborn one is closed.
    await again.put("urgent", 2, [event(2), event(3)])
    with pytest.raises(ConnectionClosed):
        await again.acked("urgent", 3)
    assert await stored_texts() == ["1", "2"]


async def test_a_gap_is_accepted_because_the_sender_dropped_it(node: Node) -> None:
    await node.put("urgent", 5, [event(5)])
    await node.acked("urgent", 5)
    await node.put("urgent", 9, [event(9)])
    await node.acked("urgent", 9)
    assert await stored_texts() == ["5", "9"]


async def test_a_new_epoch_starts_its_own_numbers(gateway: Gateway, node: Node) -> None:
    await node.put("urgent", 1, [event(1), event(2)])
    await node.acked("urgent", 2)
    wiped = await Node.connect(gateway.url, hello(credential=node.welcome.credential, epoch="epoch-2"))
    assert wiped.welcome.acked == records.LaneNext(0, 0)
    await wiped.put("urgent", 1, [event(101)])
    await wiped.acked("urgent", 1)
    assert sorted(await stored_texts()) == ["1", "101", "2"]
    await wiped.close()


async def test_bad_records_are_rejected_and_never_block_the_lane(node: Node) -> None:
    now_ns = time.time_ns()
    batch = [
        records.PutItem(1, codec.encode(event(1))),
        records.PutItem(2, b"\xc1 rubbish"),
        records.PutItem(3, codec.encode(event(3, kind="a\x00b"))),
        records.PutItem(4, codec.encode(event(4, t_ns=now_ns + 2 * limits.CLOCK_AHEAD_MAX_S * 10**9))),
        records.PutItem(
            5,
            codec.encode(records.Block(minute_ns=60 * 10**9, codec="cw1", metrics=[], data=b"", rollup=b"")),
        ),
        records.PutItem(6, codec.encode(event(6, t_ns=now_ns - (limits.RETENTION_MAX_S + 60) * 10**9))),
        records.PutItem(7, codec.encode(event(7))),
    ]
    await node.send(records.Put("urgent", batch))
    await node.acked("urgent", 7)
    assert await stored_texts() == ["1", "7"]
    assert [reject.sequence for reject in node.rejects] == [2, 3, 4, 5]
    assert "future" in node.rejects[2].reason and "lane" in node.rejects[3].reason
    cursor = await cursor_of("urgent")
    assert (cursor.stored_count, cursor.rejected_count, cursor.expired_count) == (2, 4, 1)


async def test_a_record_that_only_the_database_refuses_costs_itself_alone(node: Node) -> None:
    # Each name is legal alone; together they are too wide for the index of groups.
    wide = ["".join(Random(seed).choices(ASTRAL, k=255)) for seed in range(3)]
    groups = [records.GroupInfo(index=0, name=wide[0], desc=wide[1], ranks=[0])]
    bad = records.RankInventory(
        t_ns=time.time_ns(), ref=1, id=records.RankId("job", 0, world=wide[2]), pid=1, host="n1",
        world_size=1, groups=groups,
    )  # fmt: skip
    await node.send(records.Put("urgent", items(1, [event(1), bad, event(3)])))
    await node.acked("urgent", 3)
    assert [reject.sequence for reject in node.rejects] == [2]
    assert await stored_texts() == ["1", "3"]


async def test_unprintable_characters_in_free_text_are_replaced(node: Node) -> None:
    await node.put("urgent", 1, [event(1, text="two\nlines \x1b[31mred\x00")])
    await node.acked("urgent", 1)
    assert await stored_texts() == ["two\nlines \ufffd[31mred\ufffd"]


async def test_what_a_node_dropped_is_counted_and_becomes_an_event(node: Node) -> None:
    dropped = records.Dropped(
        t_ns=time.time_ns(), lane="bulk", counts={"block": 40, "steps": 2}, reason="the spool is full"
    )
    await node.put("urgent", 1, [dropped])
    await node.acked("urgent", 1)
    assert (await cursor_of("urgent")).dropped_count == 42
    assert "42 records of the lane bulk" in (await stored_texts())[0]


# --- rules of the connection ------------------------------------------------------------------------


async def close_code(node: Node, message: bytes) -> tuple[int, str]:
    await node.websocket.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            await node.next()
    assert closed.value.rcvd is not None
    return closed.value.rcvd.code, closed.value.rcvd.reason


async def test_an_oversize_frame_is_closed_with_words(node: Node) -> None:
    code, reason = await close_code(node, b"x" * (limits.FRAME_MAX_BYTES + 1))
    assert code == 1009 and reason


async def test_rubbish_after_the_hello_is_closed_with_words(node: Node) -> None:
    code, reason = await close_code(node, b"\xc1")
    assert code == 1008 and "valid message" in reason


async def test_a_put_of_too_many_records_is_closed(node: Node) -> None:
    batch = items(1, [event(n) for n in range(limits.RECORDS_PER_PUT_MAX + 1)])
    code, _ = await close_code(node, codec.encode(records.Put("urgent", batch)))
    assert code == 1008


async def test_a_malformed_hot_frame_is_closed(node: Node) -> None:
    columns = dict.fromkeys(records.HotProgress.__struct_fields__, b"") | {"ref": b"\1\0\0\0"}
    frame = records.HotFrame(t_ns=time.time_ns(), progress=records.HotProgress(**columns))
    code, reason = await close_code(node, codec.encode(frame))
    assert code == 1008 and "malformed hot frame" in reason


async def test_a_stopping_gateway_acknowledges_what_it_has_and_says_goodbye(
    gateway: Gateway, node: Node
) -> None:
    await node.put("urgent", 1, [event(n) for n in range(1, 101)])
    await asyncio.sleep(0.005)
    stopping = asyncio.create_task(gateway.stop())
    seen = 0
    with pytest.raises(ConnectionClosed) as closed:
        while True:
            message = await node.next()
            seen = max(seen, message.sequence if isinstance(message, records.Ack) else 0)
    await stopping
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1001
    assert len(await stored_texts()) == seen
