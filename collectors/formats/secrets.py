"""Text that people's programs print -> the same without what looks like a secret.

In: one line. Out: the line with ``***`` in place of passwords, tokens and keys. A secret is known by the name
before it (``password=``, ``Authorization:``), by its place in an address (``user:password@``) or by its own
form (key formats of clouds, code hosts and model hubs, JSON web tokens). Every repetition is bounded, so no
line costs more than its length times a constant.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"

_NAMED: Final = re.compile(
    r"""(?ix)
    (?P<keep>
        (?: passw(?:or)?d | passphrase | secret | token (?! iz ) | api[_-]?key | access[_-]?key
          | private[_-]?key | credential s? | authorization | auth[_-]?key | session[_-]?key )
        [A-Za-z0-9_-]{0,32}
        ["']? \s{0,3} (?: = | : (?![:/]) | => ) \s{0,3} (?: (?:bearer|basic|token) \s{1,3} )? ["']?
    )
    (?P<value> [^\s"',;&)\]}]{3,4096} )
    """
)
_BEARER: Final = re.compile(r"(?i)(?P<keep>\bbearer\s{1,3})(?P<value>[A-Za-z0-9._~+/=-]{8,4096})")
_IN_ADDRESS: Final = re.compile(
    r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@]{0,128}:)(?P<value>[^\s/@]{1,256})(?=@)"
)
_BY_FORM: Final = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,255}|\bgithub_pat_[A-Za-z0-9_]{20,255}|\bglpat-[A-Za-z0-9_-]{16,255}"
    r"|\bhf_[A-Za-z0-9]{20,255}|\bsk-[A-Za-z0-9_-]{20,255}|\bxox[abprs]-[A-Za-z0-9-]{10,255}"
    r"|\bAIza[A-Za-z0-9_-]{30,64}|\bnvapi-[A-Za-z0-9_-]{20,255}"
    r"|\beyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,4096}\.[A-Za-z0-9_-]{0,4096}"
    r"|-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.{0,8192}"
)
_PLAIN_WORDS: Final = re.compile(
    r"(?:-?\d{1,12}(?:\.\d{1,9})?|none|null|true|false|not|is|was|has)[.:]?", re.IGNORECASE
)
"""What may follow such a name without being a secret: ``max_tokens: 4096``, ``token: None``."""


def masked(text: str) -> str:
    """``text`` without its secrets. Cost: linear in its length."""
    text = _BY_FORM.sub(MASK, text)
    text = _IN_ADDRESS.sub(_keep_name, text)
    text = _BEARER.sub(_keep_name, text)
    return _NAMED.sub(_keep_name, text)


def _keep_name(match: re.Match[str]) -> str:
    value = match["value"]
    if value.startswith(MASK) or _PLAIN_WORDS.fullmatch(value):
        return match[0]
    return f"{match['keep']}{MASK}"
