"""`clusterwatch doctor`: checks this machine. Exit code 0 OK, 1 WARN, 2 CRIT, 3 UNKNOWN."""

from __future__ import annotations

import argparse
import json
import os

from clusterwatch.cli.up import read_settings
from clusterwatch.ops.doctor import Subject, examine, exit_code
from clusterwatch.project import environment


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the command's arguments."""
    parser = subparsers.add_parser("doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.set_defaults(command="doctor")


def run(args: argparse.Namespace) -> int:
    """Prints one line per check."""
    settings = read_settings(os.environ)
    subject = Subject(environment.state_dir(), settings.web, settings.gateway, os.environ)
    findings = examine(subject)
    if args.json:
        rows = [{"check": f.check, "level": f.level.name, "text": f.text} for f in findings]
        print(json.dumps({"checks": rows}))
    else:
        for finding in findings:
            print(f"{finding.level.name:<8}{finding.check:<11}{finding.text}")
    return exit_code(findings)
