"""The compiled reader of dumps; see ``_pickle_columns.c``."""

from typing import Any

def read(
    data: bytes, entries_max: int, /
) -> tuple[dict[str, Any], dict[str, bytes], list[Any], list[Any], list[Any]] | None:
    """Top of the dump without its entries, columns by name, rows of ``GROUP``, rows of ``SIGNATURE``, frames.

    None where the pickle is anything but ordinary; then the plain reader decides.
    """
