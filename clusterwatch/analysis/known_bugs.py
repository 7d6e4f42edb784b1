"""Whether a finding looks like a publicly known bug, given the versions the job runs with.

In: ``Case`` of a diagnosis, ``Setup`` of the facts its nodes told. Out: ``Known``: rows of the catalogue
that fit or may fit, each with what speaks for it and what is not known. Never changes a verdict or a culprit.
A row fits when all it asks for is known to be so; what is known to be otherwise takes it off. A row about
which only the kind of verdict speaks, and something else is not known, would be a guess: it is counted.
Cost: rows x texts of the case, which are capped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from clusterwatch.analysis.known_bugs_model import FACTS, NAMES, Component, KnownBug, Setting, Sure
from clusterwatch.analysis.known_bugs_table import CATALOGUE, VERSION
from clusterwatch.analysis.known_bugs_versions import Range, Version, parse
from clusterwatch.analysis.signature import plain

LINES_MAX: Final = 200
LINES_READ_MAX: Final = 20_000
LINE_MAX_CHARS: Final = 1_000
VALUES_MAX: Final = 64
"""Different values of one fact that are kept."""
FINDINGS_MAX: Final = 8
VERSIONS_TOLD: Final = 3
ENVIRONMENT_READ: Final = "env.read"
_LINE_SIGNS: Final = tuple(bug.sign.line for bug in CATALOGUE if bug.sign.line is not None)
_XID: Final = re.compile(r"\bXid (\d{1,4})\b")
_RANK_OF_SURE: Final = {Sure.CONFIRMED: 0, Sure.LIKELY: 1, Sure.REPORTED: 2}
_OF_ALL: Final = frozenset({"host", "gpu", "port"})
_WANTED: Final = frozenset(
    {name for names in FACTS.values() for name in names}
    | {name for bug in CATALOGUE for name, _ in bug.facts}
    | {bug.differs for bug in CATALOGUE if bug.differs}
    | {prefix + one.name for bug in CATALOGUE for one in bug.settings for prefix in ("env.", "nccl_conf.")}
    | {"gpu.model", ENVIRONMENT_READ}
)


@dataclass(frozen=True, slots=True)
class Case:
    """What a finding shows. ``ops`` plain, empty where no call is named; ``lines`` capped."""

    verdicts: frozenset[str]
    ops: frozenset[str] = frozenset()
    xids: frozenset[int] = frozenset()
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Setup:
    """Fact -> the values that the job's nodes told; a fact nobody told is not there."""

    facts: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def versions(self, component: Component) -> list[tuple[str, Version | None]]:
        """Texts and what they tell, of the best fact that anybody told a version in."""
        for name in FACTS[component]:
            told = [(one, parse(one)) for text in self.facts.get(name, ()) for one in text.split(", ")]
            if any(version is not None for _, version in told):
                return sorted(told, key=lambda one: one[0])
        return []


@dataclass(frozen=True, slots=True)
class Match:
    """A row that fits (``fits``) or may fit.

    Attributes:
        why: what speaks for it.
        unknown: what is not known, so that it only may be; empty where it fits.
    """

    bug: KnownBug
    why: tuple[str, ...]
    unknown: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        return not self.unknown

    def to_dict(self) -> dict[str, Any]:
        bug = self.bug
        return {
            "id": bug.id,
            "component": str(bug.component),
            "versions": "; ".join(str(one) for one in bug.ranges),
            "title": bug.title,
            "fits": "yes" if self.fits else "may be",
            "why": list(self.why),
            "unknown": list(self.unknown),
            "action": bug.action,
            "source": bug.source,
            "sure": str(bug.sure),
        }


@dataclass(frozen=True, slots=True)
class Known:
    """Rows, those that fit first.

    Attributes:
        unchecked: rows by component for which a version, a GPU's model or a setting is not known.
    """

    rows: tuple[Match, ...] = ()
    unchecked: Mapping[Component, int] = field(default_factory=dict)
    version: str = VERSION

    def to_dict(self) -> dict[str, Any]:
        return {
            "catalogue_version": self.version,
            "rows": [one.to_dict() for one in self.rows],
            "unchecked": {str(component): count for component, count in sorted(self.unchecked.items())},
        }


def case_of(diagnosis: Mapping[str, Any], lines: Iterable[str] = ()) -> Case:
    """The case of a diagnosis in its JSON form.

    Args:
        lines: logs and exceptions beside it, of which those are kept that some row asks for.
    """
    found = [one for one in diagnosis.get("findings") or () if isinstance(one, Mapping)][:FINDINGS_MAX]
    parts = [diagnosis, *found]
    texts: list[str] = []
    for part in parts:
        texts += [str(part.get("summary") or ""), str(part.get("cause") or "").replace("_", " ")]
        texts += [str(line) for line in part.get("why") or ()]
    cut = (line[:LINE_MAX_CHARS] for line in islice(lines, LINES_READ_MAX))
    told = (line for line in cut if any(sign.search(line) for sign in _LINE_SIGNS))
    texts = [text[:LINE_MAX_CHARS] for text in texts if text][:LINES_MAX]
    texts = list(dict.fromkeys((*texts, *islice(told, LINES_MAX))))
    ops = {plain(str(part["op"]).split(" ")[0]) for part in parts if part.get("op")}
    xids = {int(found) for text in texts for found in _XID.findall(text.replace("xid ", "Xid "))}
    verdicts = {str(part["verdict"]) for part in parts if part.get("verdict")}
    return Case(frozenset(verdicts), frozenset(ops), frozenset(xids), tuple(texts))


def setup_of(nodes: Iterable[Mapping[str, Mapping[str, str]]], job: str = "") -> Setup:
    """What nodes told of themselves and of one job.

    Args:
        nodes: facts of each node by entity, as ``store.node_facts`` reads them.
        job: the scheduler's id; what is told of other jobs does not count.
    """
    found: dict[str, set[str]] = {}
    for facts in nodes:
        for entity, told in facts.items():
            kind = entity.partition("/")[0]
            if kind in _OF_ALL or (job and (entity == f"job/{job}" or entity.startswith(f"job/{job}/"))):
                for name in _WANTED & told.keys():
                    values = found.setdefault(name, set())
                    if told[name] and len(values) < VALUES_MAX:
                        values.add(told[name])
    return Setup({name: frozenset(values) for name, values in found.items()})


def matches(case: Case, setup: Setup, catalogue: Iterable[KnownBug] = CATALOGUE) -> Known:
    """Rows of the catalogue that fit the case or may fit it."""
    found: list[Match] = []
    unchecked: Counter[Component] = Counter()
    for bug in catalogue:
        signs = _signs(bug, case)
        needs = None if signs is None else list(_needs(bug, setup))
        if signs is None or needs is None or any(need.holds is False for need in needs):
            continue
        version = _version(bug, setup)
        if version.holds is False:
            continue
        every = [*signs, version, *needs]
        is_told = any(one.holds and one.is_special for one in signs) or all(one.holds for one in every)
        if not is_told:
            unchecked[bug.component] += 1
            continue
        why = tuple(one.text for one in every if one.holds)
        found.append(Match(bug, why, tuple(one.text for one in every if one.holds is None)))
    found.sort(key=lambda one: (not one.fits, _RANK_OF_SURE[one.bug.sure], one.bug.id))
    return Known(tuple(found), dict(unchecked))


@dataclass(frozen=True, slots=True)
class _Test:
    """One thing a row asks for. ``holds`` None: not known. ``is_special``: few other faults show it."""

    holds: bool | None
    text: str
    is_special: bool = False


def _signs(bug: KnownBug, case: Case) -> list[_Test] | None:
    """What the finding shows of the bug; None where it shows something else."""
    sign, told = bug.sign, []
    if sign.verdicts:
        same = sorted(sign.verdicts & case.verdicts)
        if not same:
            return None
        told.append(_Test(True, f"the verdict is {same[0]}"))
    if sign.xids:
        seen = sorted(sign.xids & case.xids)
        if not seen:
            return None
        told.append(_Test(True, f"Xid {seen[0]} is told", True))
    if sign.line is not None:
        line = next((line for line in case.lines if sign.line.search(line)), None)
        if line is None:
            return None
        told.append(_Test(True, f"a line says: {line[:160]}", True))
    if sign.ops:
        same = sorted(sign.ops & case.ops)
        if case.ops and not same:
            return None
        known = _Test(True, f"the call is {same[0]}", True) if same else None
        told.append(known or _Test(None, "the call is not known"))
    return told


def _version(bug: KnownBug, setup: Setup) -> _Test:
    """Whether any process or part has a version with the bug."""
    name = NAMES[bug.component]
    told = setup.versions(bug.component)
    if all(one == Range() for one in bug.ranges):
        return _Test(True, f"the source names no end of it, whatever the version of {name}")
    if not told:
        return _Test(None, f"the version of {name} is not known")
    fates = {text: _has_it(bug, version) for text, version in told}
    bad = [text for text, fate in fates.items() if fate]
    if bad:
        some = "" if len(bad) == len(fates) else ", others do not"
        return _Test(True, f"{name} {_few(bad)} has it{some}")
    open_ = [text for text, fate in fates.items() if fate is None]
    if open_:
        return _Test(None, f"whether {name} {_few(open_)} has it cannot be told from its version")
    return _Test(False, "")


def _has_it(bug: KnownBug, version: Version | None) -> bool | None:
    if version is None:
        return None
    fates = {one.holds(version) for one in bug.ranges}
    return True if True in fates else None if None in fates else False


def _few(texts: list[str]) -> str:
    more = f" and {len(texts) - VERSIONS_TOLD} more" if len(texts) > VERSIONS_TOLD else ""
    return ", ".join(text[:80] for text in texts[:VERSIONS_TOLD]) + more


def _needs(bug: KnownBug, setup: Setup) -> Iterator[_Test]:
    """GPUs, settings and other facts without which the bug is not there."""
    if bug.gpus:
        models = setup.facts.get("gpu.model", frozenset())
        have = sorted(model for model in models if any(word in model for word in bug.gpus))
        wanted = " or ".join(bug.gpus)
        yield (
            _Test(bool(have), f"the GPUs are {have[0] if have else ''}")
            if models
            else _Test(None, f"whether the GPUs are {wanted} is not known")
        )
    for name, value in bug.facts:
        told = setup.facts.get(name)
        yield _Test(value in told, f"{name} is {value}") if told else _Test(None, f"{name} is not known")
    if bug.differs:
        told = setup.facts.get(bug.differs)
        word = bug.differs.removeprefix("env.")
        if told is None:
            yield _Test(None, f"whether {word} differs among its nodes is not known")
        else:
            yield _Test(len(told) > 1, f"{word} differs: {_few(sorted(told))}")
    for setting in bug.settings:
        yield _set(setting, setup)


def _set(setting: Setting, setup: Setup) -> _Test:
    told = setup.facts.get(f"env.{setting.name}") or setup.facts.get(f"nccl_conf.{setting.name}")
    if told:
        wanted = told & set(setting.values) if setting.values else told
        fit = sorted(wanted - set(setting.but))
        return _Test(bool(fit), f"{setting.name} is {fit[0] if fit else ''}")
    if ENVIRONMENT_READ in setup.facts:
        return _Test(setting.unset, f"{setting.name} is not set")
    return _Test(None, f"{setting.name} is not known")
