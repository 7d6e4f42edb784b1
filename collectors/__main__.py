"""``clusterwatch-agent``: run, doctor, once, poll, pause-gpu, resume-gpu.

Exit codes: 0 done, 1 the doctor found a fault or a device was not reached, 64 usage, 66 no such tree, 71 the
system refuses (socket, folder), 75 another agent runs, 78 a bad setting (sysexits.h). Each comes with one
line on stderr.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from pathlib import Path
from typing import Final, NoReturn

OK: Final = 0
USAGE: Final = 64
NO_INPUT: Final = 66
OS_ERROR: Final = 71
TEMPORARY: Final = 75
CONFIG: Final = 78
_INTERVAL_MAX_S: Final = 86_400.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def main(argv: list[str] | None = None) -> int:
    """The console script."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.call(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our lines has gone; Python must not complain about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="clusterwatch-agent", description="Watches this node and its training processes.")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=_Parser)
    run = commands.add_parser("run", help="watch and send until SIGTERM; settings: CLUSTERWATCH_* variables")
    run.set_defaults(call=_run)
    doctor = commands.add_parser("doctor", help="say what would keep the agent from working")
    doctor.set_defaults(call=_doctor)
    once = commands.add_parser("once", help="look once and print JSON lines")
    once.add_argument(
        "--root",
        action="append",
        type=Path,
        default=[],
        metavar="DIR",
        help="a recorded tree; twice: before and after",
    )
    once.add_argument("--interval-s", type=float, metavar="S", help="seconds between the two looks")
    once.add_argument("--stdout", action="store_true", help="print to stdout (the only place there is)")
    once.add_argument("--sources", metavar="A,B", help="only these sources and pollers")
    once.set_defaults(call=_once)
    poll = commands.add_parser("poll", help="ask switches and other devices and print JSON lines")
    poll.add_argument("file", type=Path, metavar="FILE", help="pollers.toml")
    poll.add_argument("--interval-s", type=float, metavar="S", help="look twice, S seconds apart, for rates")
    poll.set_defaults(call=_poll)
    pause = commands.add_parser("pause-gpu", help="have the agent let go of the GPU driver, for a reset")
    pause.add_argument("--for", dest="time", default="10m", metavar="TIME", help="90s, 10m; at most 1h")
    pause.set_defaults(call=_pause_gpu)
    resume = commands.add_parser("resume-gpu", help="end the pause before its time")
    resume.set_defaults(call=_resume_gpu)
    return parser


def _run(_: argparse.Namespace) -> int:
    import asyncio

    from collectors import config as settings
    from collectors.agent import Agent, AlreadyRunning

    log_to_stderr()
    try:
        config = settings.load(os.environ)
    except settings.ConfigError as error:
        return _fail(CONFIG, str(error))

    def ready() -> None:
        print(f"agent ready node={config.node} hook={config.hook_socket}", flush=True)

    async def live() -> None:
        await Agent(config).run(ready)

    try:
        asyncio.run(live())
    except AlreadyRunning as error:
        return _fail(TEMPORARY, f"{error}: stop it first, or set CLUSTERWATCH_STATE_DIR to another folder")
    except OSError as error:
        return _fail(OS_ERROR, f"cannot start: {error}")
    return OK


def _doctor(_: argparse.Namespace) -> int:
    from collectors import doctor

    return doctor.run(os.environ, sys.stdout)


def _pause_gpu(arguments: argparse.Namespace) -> int:
    from collectors import pause_command
    from collectors.sources import gpu_pause

    try:
        seconds = gpu_pause.duration_s(arguments.time)
    except ValueError as error:
        return _fail(USAGE, f"--for: {error}")
    try:
        return OK if pause_command.pause(_agent_folder(), seconds, sys.stdout) else OS_ERROR
    except OSError as error:
        return _fail(OS_ERROR, f"cannot pause: {error}")


def _resume_gpu(_: argparse.Namespace) -> int:
    from collectors import pause_command

    try:
        pause_command.resume(_agent_folder(), sys.stdout)
    except OSError as error:
        return _fail(OS_ERROR, f"cannot resume: {error}")
    return OK


def _agent_folder() -> Path:
    from collectors import config as settings

    return settings.state_root(os.environ) / "agent"


def _once(arguments: argparse.Namespace) -> int:
    from collectors import once

    log_to_stderr()
    chosen = arguments.sources.split(",") if arguments.sources else once.names()
    unknown = [name for name in chosen if name not in once.names()]
    if unknown:
        return _fail(USAGE, f"no source {unknown[0]!r}; there are {', '.join(once.names())}")
    if len(arguments.root) > 2:
        return _fail(USAGE, "at most two --root: before and after")
    if len(arguments.root) == 2 and not (arguments.interval_s and arguments.interval_s > 0):
        return _fail(USAGE, "two --root need --interval-s, the seconds between them")
    for root in arguments.root:
        if not root.is_dir():
            return _fail(NO_INPUT, f"{root} is no folder")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return once.run(arguments.root, arguments.interval_s, chosen, sys.stdout)


def _poll(arguments: argparse.Namespace) -> int:
    from collectors import poll
    from collectors.pollers.device import ConfigError

    log_to_stderr()
    if arguments.interval_s is not None and not 0 < arguments.interval_s <= _INTERVAL_MAX_S:
        return _fail(USAGE, f"--interval-s must be above 0 and at most {_INTERVAL_MAX_S:g}")
    try:
        pollers = poll.load(arguments.file)
    except ConfigError as error:
        return _fail(CONFIG, str(error))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    looks = 1 if arguments.interval_s is None else 2
    return poll.run(pollers, looks, arguments.interval_s or 0.0, sys.stdout)


def log_to_stderr() -> None:
    """Event name and fields, one line each."""
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    logging.getLogger("websockets").setLevel(logging.ERROR)


def _fail(code: int, text: str) -> int:
    print(f"clusterwatch-agent: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
