"""Who may talk: a hello is checked against tokens and its node gets its place. Runs in a database thread."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from clusterwatch.accounts import queries as account_queries
from clusterwatch.accounts import services as accounts
from clusterwatch.accounts.models import Token
from clusterwatch.fleet import queries as fleet_queries
from clusterwatch.fleet import services as fleet
from clusterwatch.fleet.models import Cluster
from clusterwatch.ingest.apply import Origin
from clusterwatch.ingest.checks import GPU_INDEX_MAX, Rejected, check_name
from clusterwatch.store import cursors
from collectors.wire import codec, records
from collectors.wire.records import LANES, Hello, LaneNext


class Refused(Exception):
    """The hello is turned away; ``code`` is one of ``records.Refuse``'s."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Admission:
    """A node that proved who it is."""

    origin: Origin
    slots: tuple[int, ...]
    gpu_indices: tuple[int, ...]
    acked: LaneNext
    credential: str | None
    """only when it was just issued"""


def check_hello(hello: Hello) -> None:
    """What needs no database. Raises ``Refused``."""
    try:
        codec.check_version(hello.version)
    except codec.WireError as error:
        raise Refused(error.code, str(error)) from error
    for field in ("cluster", "node", "machine_id", "boot_id", "epoch", "agent_version"):
        value = getattr(hello, field)
        if not value and field in ("cluster", "node", "machine_id", "epoch"):
            raise Refused("bad_hello", f"a hello without {field}")
        _check(field, value)
    for field in ("rack", "leaf", "nvlink_domain"):
        _check(field, getattr(hello, field) or "")
    indices = {gpu.index for gpu in hello.gpus}
    if len(indices) != len(hello.gpus) or not all(0 <= index <= GPU_INDEX_MAX for index in indices):
        raise Refused("bad_hello", "GPU indices repeat or are out of range")
    for gpu in hello.gpus:
        for part in (gpu.uuid, gpu.serial, gpu.model, gpu.pci, gpu.nvlink_domain):
            _check("a GPU's identity", part or "")
    if not 0 <= (hello.cpu_count or 0) < 2**31 or not 0 <= (hello.memory_bytes or 0) < 2**63:
        raise Refused("bad_hello", "cpu_count or memory_bytes is out of range")


def admit(hello: Hello) -> Admission:
    """Checks the hello's proof, issues a credential where it enrols, registers the node.

    Raises:
        Refused: with the code that the node is told.
    """
    with transaction.atomic():
        credential = _prove(hello)
        cluster = fleet_queries.cluster_named(hello.cluster)
        if cluster is None:
            raise Refused(
                "bad_enrolment", f"no cluster {hello.cluster} here: make it with its enrolment token"
            )
        _check_kind(cluster, hello)
        place = fleet.register_node(cluster, hello)
        origin = Origin(hello.cluster, hello.node, hello.epoch, place.cluster_id, place.node_id)
        keys = {lane: cursors.LaneKey(hello.cluster, hello.node, hello.epoch, lane) for lane in LANES}
        positions = cursors.read(list(keys.values()))
    acked = LaneNext(positions.get(keys["urgent"], 0), positions.get(keys["bulk"], 0))
    indices = tuple(gpu.index for gpu in hello.gpus)
    return Admission(origin, place.slots, indices, acked, credential)


def _prove(hello: Hello) -> str | None:
    """Returns a fresh credential when the node enrolled, None when it showed one."""
    if hello.credential:
        try:
            _check_credential(hello, hello.credential)
        except Refused as refusal:
            # A server set up anew does not know the credential; the enrolment token may still prove the node.
            if refusal.code != "bad_credential" or not hello.enrolment_token:
                raise
        else:
            return None
    return _enrol(hello)


def _check_credential(hello: Hello, credential: str) -> None:
    try:
        token = accounts.verify_token(credential, (Token.Kind.NODE,))
    except accounts.TokenRefused as refusal:
        code = "revoked" if refusal.code == "revoked" else "bad_credential"
        raise Refused(code, str(refusal)) from refusal
    if (token.cluster, token.node) != (hello.cluster, hello.node):
        raise Refused("bad_credential", "this credential is another node's")
    if token.machine_id != hello.machine_id:
        raise Refused("foreign_machine", "this credential was issued to another machine")


def _enrol(hello: Hello) -> str:
    if not hello.enrolment_token:
        raise Refused("bad_enrolment", "neither a credential nor an enrolment token")
    try:
        token = accounts.verify_token(hello.enrolment_token, (Token.Kind.ENROLMENT,))
    except accounts.TokenRefused as refusal:
        raise Refused("bad_enrolment", str(refusal)) from refusal
    if token.cluster != hello.cluster:
        raise Refused("bad_enrolment", f"this enrolment token is not of cluster {hello.cluster}")
    bound = account_queries.newest_node_credential(hello.cluster, hello.node)
    if bound is not None:
        if bound.revoked_at is not None:
            raise Refused("revoked", "this node's credential was revoked: an operator must release the name")
        if bound.machine_id != hello.machine_id:
            raise Refused(
                "foreign_machine",
                "another machine holds this node's name: an operator must release it first",
            )
    return accounts.issue_node_credential(
        hello.cluster, hello.node, hello.machine_id, actor=f"enrolment {token.prefix}"
    )


def _check_kind(cluster: Cluster, hello: Hello) -> None:
    if cluster.simulated != hello.simulated:
        raise Refused(
            "bad_enrolment",
            f"cluster {cluster.name} is for {'simulated' if cluster.simulated else 'real'} nodes only",
        )


def _check(field: str, value: str) -> None:
    try:
        check_name(field, value)
    except Rejected as error:
        raise Refused("bad_hello", str(error)) from error


def refuse(refusal: Refused, retry_after_s: float | None = None) -> bytes:
    """The message that tells a node why."""
    return codec.encode(records.Refuse(code=refusal.code, reason=refusal.reason, retry_after_s=retry_after_s))
