"""Colours of the visual system: contrast of text and of canvas inks, and no colour outside the tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSS = Path(__file__).resolve().parents[2] / "static" / "css"
GROUNDS = ("bg", "surface", "raised", "sunken", "hover", "active")
STATES = ("ok", "degraded", "failed", "idle", "drained", "unknown")


def _theme(name: str) -> dict[str, str]:
    text = (CSS / "tokens.css").read_text()
    block = re.search(rf"\[data-theme={name}\]\s*{{(.*?)}}", text, re.DOTALL)
    assert block
    return dict(re.findall(r"--([\w-]+):(#[0-9a-f]{6});", block[1]))


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", ["text", "text-2", "text-3", "accent"])
def test_text_is_readable_on_every_ground(theme: str, ink: str) -> None:
    colors = _theme(theme)
    assert min(contrast(colors[ink], colors[ground]) for ground in GROUNDS) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", STATES)
def test_each_state_is_readable_as_text_and_visible_as_ink(theme: str, state: str) -> None:
    colors = _theme(theme)
    assert contrast(colors[state], colors["surface"]) >= 4.5
    assert contrast(colors[state], colors[f"{state}-bg"]) >= 4.5
    assert min(contrast(colors[f"{state}-fill"], colors[ground]) for ground in ("map", "bg")) >= 3


def test_pages_use_tokens_and_no_colour_of_their_own() -> None:
    text = (CSS / "pages.css").read_text()
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)", text) == []
