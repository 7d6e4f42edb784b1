"""Bounds of wire v1, checked on both sides. Beyond a bound a thing is refused with words, never trimmed."""

from typing import Final

PROTOCOL_MAJOR: Final = 1
PROTOCOL_MINOR: Final = 0

FRAME_MAX_BYTES: Final = 4 * 1024 * 1024
"""One websocket message, either way."""

RECORD_MAX_BYTES: Final = 3 * 1024 * 1024
"""One record as it lies in the spool (compressed parts stay compressed)."""

PART_MAX_DECOMPRESSED_BYTES: Final = 32 * 1024 * 1024
"""What a compressed part (block, trace, stacks) may grow to."""

NAME_MAX_CHARS: Final = 255
JOB_LABELS_MAX: Final = 64
"""of a job: partition, account and what its owner calls it; a hook tells sixteen"""
"""Host, job, group, metric and source names; DNS and Slurm both stay below it."""

TEXT_MAX_CHARS: Final = 16_384
"""Free text: event texts, exception messages, tracebacks."""

GROUPS_PER_RANK_MAX: Final = 4_096
RANKS_PER_NODE_MAX: Final = 1_024
RANKS_PER_GROUP_MAX: Final = 1_048_576
ENTRIES_PER_TRACE_MAX: Final = 200_000
FRAMES_PER_STACK_MAX: Final = 256
METRICS_PER_FRAME_MAX: Final = 2_048
SERIES_PER_METRIC_MAX: Final = 1_024
"""Values of one metric of a node; an NVL72 rack has 72."""

READINGS_ROWS_MAX: Final = 65_536
"""Values of one ``Readings`` or ``DeviceReadings``; a switch with 576 ports has about 35,000."""

READINGS_NAME_MAX_CHARS: Final = 128
READINGS_MAX_DECOMPRESSED_BYTES: Final = 4 * 1024 * 1024
SOURCES_MAX: Final = 64

STEP_WAIT_MAX_S: Final = 86_400.0
"""A step that waits longer for its peers than a day is no step."""

EDGE_OPS_MAX: Final = 64
"""Different calls that one ``Edges`` may name; torch has about twenty."""
EDGE_SIZE_MAX_BYTES: Final = 2**44
"""of one call: more than all memory of a node"""

RECORDS_PER_PUT_MAX: Final = 256

CLOCK_AHEAD_MAX_S: Final = 600
"""A record whose time is further in the server's future than this is rejected."""

RETENTION_MAX_S: Final = 30 * 24 * 3600
"""A record older than this is acknowledged and counted as expired."""

RESOLUTION_MIN: Final = 1e-12
RESOLUTION_MAX: Final = 1e12
"""What a metric's smallest step may be, in its unit: any int64 multiple of it stays a finite float32."""

SILENT_AFTER_S: Final = 3.0
"""A node that sent nothing for this long is UNKNOWN."""
