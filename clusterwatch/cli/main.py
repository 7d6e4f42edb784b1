"""`clusterwatch COMMAND`: finds the command's module, runs it, says faults in one line.

Only the module of the command that was called is imported, so that `analyze` starts without Django.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

from clusterwatch import __version__
from clusterwatch.ops.errors import OpsError

EXIT_FAULT = 1
EXIT_USAGE = 64  # EX_USAGE of sysexits.h
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells say it

COMMANDS = {
    "analyze": "verdict on a folder of flight-recorder dumps, logs or traces; needs no server",
    "why": "the live verdict on a job, in one screen",
    "up": "start everything and print the address",
    "down": "stop everything that `up` started",
    "status": "one table of the processes",
    "doctor": "check this machine and explain what is wrong",
    "token": "make, list and revoke tokens",
    "receiver": "who is told of incidents, by mail or webhook",
    "cluster": "clusters, and whether anybody is paged for them",
    "simulate": "a simulated cluster on the real wire",
    "retention": "what is kept how long, the disk it takes, and when it will be full",
    "distribute": "spread node-keyed tables over several databases",
    "backup": "write a backup",
    "restore": "read a backup back",
    "export": "series as CSV, JSON or Parquet, streamed",
    "replay": "play recorded data again",
    "bench": "measure one part; the last line is JSON",
}
"""Every command with its one-line help; one whose module is not installed is not offered."""

_OF_ANALYSIS = frozenset({"analyze"})
"""Commands that need the extra ``analysis`` only; all others need ``server``."""
_OURS = ("clusterwatch", "collectors")
_OUTPUT_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


class _Parser(argparse.ArgumentParser):
    """argparse, ending with EX_USAGE: 2 means `critical` in this product."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def available_commands() -> dict[str, str]:
    """The commands of this installation with their help."""
    return {name: text for name, text in COMMANDS.items() if importlib.util.find_spec(_module(name))}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser with the arguments of one command and the names of all."""
    commands = available_commands()
    listing = "\n".join(f"  {name:<12}{text}" for name, text in commands.items())
    parser = _Parser(
        prog="clusterwatch",
        usage="clusterwatch COMMAND [arguments]",
        description=f"commands:\n{listing}\n\nclusterwatch COMMAND --help tells more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"clusterwatch {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    if command in commands:
        importlib.import_module(_module(command)).add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        The command's exit code; 1 after a fault said in one line, 64 for wrong usage.
    """
    # Set before numpy comes: nothing here multiplies matrices, and its idle threads cost 0.1 s at the start
    # of a command and make forking unsafe.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command is not None and command not in available_commands():
        print(
            f"clusterwatch: there is no command {command!r}; clusterwatch --help lists them", file=sys.stderr
        )
        return EXIT_USAGE
    try:
        return _run(command, arguments)
    except OpsError as fault:
        print(f"clusterwatch: {fault}", file=sys.stderr)
        return EXIT_FAULT
    except ModuleNotFoundError as missing:
        if command is None or not missing.name or missing.name.partition(".")[0] in _OURS:
            raise
        print(f"clusterwatch: {_lacking(command, missing.name)}", file=sys.stderr)
        return EXIT_FAULT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _forget_output()
        return EXIT_FAULT
    except OSError as error:
        if error.errno not in _OUTPUT_FULL or error.filename is not None:
            raise
        _forget_output()
        print(f"clusterwatch: the answer cannot be written: {error.strerror}", file=sys.stderr)
        return EXIT_FAULT


def _run(command: str | None, arguments: list[str]) -> int:
    """Parses, runs, and sees the answer out of the buffers."""
    parser = build_parser(command)
    options = parser.parse_args(arguments)
    if command is None:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    code = int(importlib.import_module(_module(command)).run(options))
    sys.stdout.flush()
    return code


def _lacking(command: str, package: str) -> str:
    extra = "analysis" if command in _OF_ANALYSIS else "server"
    return (
        f"{command} needs the extra [{extra}] ({package.partition('.')[0]} is not installed): "
        f"pip install 'clusterwatch[{extra}]'"
    )


def _forget_output() -> None:
    """What reads or holds the output is gone or full. Python would complain again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _module(command: str) -> str:
    return f"clusterwatch.cli.{command}"


if __name__ == "__main__":
    sys.exit(main())
