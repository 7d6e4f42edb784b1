"""The commands: one module each, with `add_parser(subparsers)` and `run(args) -> int`.

In: arguments. Out: text for people or JSON, and an exit code. A command is imported when it is called, and
imports Django only if it needs the database. Nothing imports this room.
"""
