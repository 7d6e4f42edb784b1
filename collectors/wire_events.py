"""Events as they travel: what a source or a poller saw, and what the agent says of itself.

In: ``SourceEvent`` or words. Out: ``records.Event`` within the wire's bounds.
"""

from __future__ import annotations

import json

from collectors.hook_messages import clip
from collectors.sources.base import Attribute, SourceEvent
from collectors.wire import records


def of_agent(
    t_ns: int, kind: str, severity: records.Severity, text: str, fields: dict[str, str]
) -> records.Event:
    """What the agent says of itself."""
    return records.Event(t_ns=t_ns, source="agent", kind=kind, severity=severity, text=text, fields=fields)


def of_source(source: str, event: SourceEvent, now_ns: int) -> records.Event:
    """What ``source`` saw; ``now_ns`` where the event has no time of its own."""
    fields = {name: _told(value) for name, value in event.attributes.items()} | {"entity": event.entity}
    if event.code is not None:
        fields["code"] = str(event.code)
    if event.standing:
        fields["standing"] = "true"
    return records.Event(
        t_ns=event.t_ns if event.t_ns is not None else now_ns,
        source=source,
        kind=event.kind,
        severity=event.severity,
        text=clip(event.message),
        fields=fields,
    )


def _told(value: Attribute) -> str:
    """An attribute as the wire carries it: text; anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
