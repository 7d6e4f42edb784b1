"""Who may talk: hellos are checked against tokens, their nodes get their places. Runs in a database thread.

Many are answered together: after a restart of the gateway a whole fleet says hello within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction

from clusterwatch.accounts import node_credentials
from clusterwatch.accounts.models import Token
from clusterwatch.accounts.services import TokenRefused
from clusterwatch.fleet import queries as fleet_queries
from clusterwatch.fleet.models import Cluster
from clusterwatch.fleet.registration import register_nodes
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


Answer = Admission | Refused
"""What became of a hello."""


def admit(hellos: Sequence[Hello]) -> list[Answer]:
    """Checks the proof of each hello, issues a credential where it enrols, registers the nodes.

    Args:
        hellos: each (cluster, node) once.

    Returns:
        the answers in the order of the hellos; a refusal of one costs the others nothing.

    Cost: about fifteen statements for each cluster, however many nodes.
    """
    with transaction.atomic():
        answers: dict[int, Answer] = {}
        proved: dict[str, list[tuple[int, _Proof]]] = {}
        for place, proof in enumerate(_proofs(hellos)):
            if isinstance(proof, Refused):
                answers[place] = proof
            else:
                proved.setdefault(hellos[place].cluster, []).append((place, proof))
        for name, members in proved.items():
            proofs = [(hellos[place], proof) for place, proof in members]
            admitted = _admit_to(fleet_queries.cluster_named(name), proofs)
            answers.update(zip([place for place, _ in members], admitted, strict=True))
    return [answers[place] for place in range(len(hellos))]


@dataclass(frozen=True, slots=True)
class _Proof:
    """A hello that may come in."""

    enrolled_by: str | None
    """the prefix of the enrolment token of a node that gets a credential now"""


def _admit_to(cluster: Cluster | None, proved: Sequence[tuple[Hello, _Proof]]) -> list[Answer]:
    """Answers hellos of one cluster that proved who they are."""
    if cluster is None:
        words = "no cluster {} here: make it with its enrolment token"
        return [Refused("bad_enrolment", words.format(hello.cluster)) for hello, _ in proved]
    answers: dict[str, Answer] = {}
    welcome: dict[str, _Proof] = {}
    for hello, proof in proved:
        try:
            _check_kind(cluster, hello)
            welcome[hello.node] = proof
        except Refused as refusal:
            answers[hello.node] = refusal
    mine = [hello for hello, _ in proved if hello.node in welcome]
    secrets = _enrol(cluster.name, mine, welcome)
    places = register_nodes(cluster, mine) if mine else []
    acked = _acked(mine)
    for hello, place in zip(mine, places, strict=True):
        origin = Origin(hello.cluster, hello.node, hello.epoch, place.cluster_id, place.node_id)
        answers[hello.node] = Admission(origin, place.slots, acked[hello.node], secrets.get(hello.node))
    return [answers[hello.node] for hello, _ in proved]


def _acked(hellos: Sequence[Hello]) -> dict[str, LaneNext]:
    """How far each node's lanes are committed."""
    keys = {
        (hello.node, lane): cursors.LaneKey(hello.cluster, hello.node, hello.epoch, lane)
        for hello in hellos
        for lane in LANES
    }
    positions = cursors.read(list(keys.values())) if keys else {}

    def committed(node: str, lane: records.Lane) -> int:
        return positions.get(keys[node, lane], 0)

    return {h.node: LaneNext(committed(h.node, "urgent"), committed(h.node, "bulk")) for h in hellos}


# --- proofs -------------------------------------------------------------------------------------------


def _proofs(hellos: Sequence[Hello]) -> list[_Proof | Refused]:
    """What each hello proves."""
    shown = [hello.credential for hello in hellos if hello.credential]
    credentials = node_credentials.verify_tokens(shown, (Token.Kind.NODE,))
    tokens = node_credentials.verify_tokens(
        [hello.enrolment_token for hello in hellos if hello.enrolment_token], (Token.Kind.ENROLMENT,)
    )
    bound: dict[tuple[str, str], Token] = {}
    for cluster in {hello.cluster for hello in hellos if hello.enrolment_token}:
        nodes = [hello.node for hello in hellos if hello.cluster == cluster]
        for node, token in node_credentials.newest_of_nodes(cluster, nodes).items():
            bound[cluster, node] = token
    found: list[_Proof | Refused] = []
    for hello in hellos:
        try:
            found.append(_prove(hello, credentials, tokens, bound.get((hello.cluster, hello.node))))
        except Refused as refusal:
            found.append(refusal)
    return found


_Verified = Mapping[str, Token | TokenRefused]


def _prove(hello: Hello, credentials: _Verified, tokens: _Verified, bound: Token | None) -> _Proof:
    """Says whether the node enrols or showed its credential. Raises ``Refused``."""
    if hello.credential:
        try:
            _check_credential(hello, credentials[hello.credential])
        except Refused as refusal:
            # A server set up anew does not know the credential; the enrolment token may still prove the node.
            if refusal.code != "bad_credential" or not hello.enrolment_token:
                raise
        else:
            return _Proof(None)
    if not hello.enrolment_token:
        raise Refused("bad_enrolment", "neither a credential nor an enrolment token")
    return _Proof(_check_enrolment(hello, tokens[hello.enrolment_token], bound))


def _check_credential(hello: Hello, token: Token | TokenRefused) -> None:
    if isinstance(token, TokenRefused):
        raise Refused("revoked" if token.code == "revoked" else "bad_credential", str(token))
    if (token.cluster, token.node) != (hello.cluster, hello.node):
        raise Refused("bad_credential", "this credential is another node's")
    if token.machine_id != hello.machine_id:
        raise Refused("foreign_machine", "this credential was issued to another machine")


def _check_enrolment(hello: Hello, token: Token | TokenRefused, bound: Token | None) -> str:
    """The prefix of a token that lets this node in. Raises ``Refused``."""
    if isinstance(token, TokenRefused):
        raise Refused("bad_enrolment", str(token))
    if token.cluster != hello.cluster:
        raise Refused("bad_enrolment", f"this enrolment token is not of cluster {hello.cluster}")
    if bound is not None and bound.revoked_at is not None:
        raise Refused("revoked", "this node's credential was revoked: an operator must release the name")
    if bound is not None and bound.machine_id != hello.machine_id:
        raise Refused(
            "foreign_machine", "another machine holds this node's name: an operator must release it first"
        )
    return token.prefix


def _enrol(cluster: str, hellos: Sequence[Hello], proofs: Mapping[str, _Proof]) -> dict[str, str]:
    """Fresh credentials by node."""
    wishes = [
        node_credentials.Wish(hello.node, hello.machine_id, f"enrolment {proofs[hello.node].enrolled_by}")
        for hello in hellos
        if proofs[hello.node].enrolled_by is not None
    ]
    return node_credentials.issue(cluster, wishes) if wishes else {}


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
