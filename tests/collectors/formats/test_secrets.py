"""Secrets in log lines are masked, and what only looks like one is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats.secrets import MASK, masked


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("db password=hunter22, retrying", "hunter22"),
        ("export WANDB_API_KEY=0123456789abcdef", "0123456789abcdef"),
        ("> Authorization: Bearer abc.def-ghi_123", "abc.def-ghi_123"),
        ("> authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("requests bearer 0123456789abcdef", "0123456789abcdef"),
        ("pull s3://bob:s3cr3t@store/bucket failed", "s3cr3t"),
        ("login with hf_abcdefghijklmnopqrstuvwx ok", "hf_abcdefghijklmnopqrstuvwx"),
        ("key AKIAABCDEFGHIJKLMNOP denied", "AKIAABCDEFGHIJKLMNOP"),
        ("cfg = {'hf_token': 'abcd1234', 'lr': 0.1}", "abcd1234"),
        ('{"aws_secret_access_key": "wJalrXUtnFEMI/K7MDENG"}', "wJalrXUtnFEMI/K7MDENG"),
        ("jwt eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl end", "eyJzdWIiOiIx"),
    ],
)
def test_a_secret_is_masked(text: str, secret: str) -> None:
    assert secret not in masked(text)
    assert MASK in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens: 4096",
        "step 100 tokens/s: 12345.6",
        "KeyError: 'token'",
        "tokenizer: /data/tokenizer.model",
        "loading secret: none",
        "node-7:4242:4300 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<3> with status=12",
        'File "/opt/train.py", line 3, in main',
    ],
)
def test_what_is_none_is_left(text: str) -> None:
    assert masked(text) == text


@given(st.text(max_size=400))
def test_masking_twice_changes_nothing_more(text: str) -> None:
    once = masked(text)
    assert masked(once) == once
