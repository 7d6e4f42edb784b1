"""Options that benches share are the same words with the same limits."""

from __future__ import annotations

import pytest

from clusterwatch.cli.benches import options, query, store
from clusterwatch.ops.errors import OpsError


@pytest.mark.parametrize("gpus", [0, 56, 100, -64])
@pytest.mark.parametrize("bench", [store, query])
def test_gpus_that_no_whole_nodes_make_are_refused_before_anything_starts(bench: object, gpus: int) -> None:
    with pytest.raises(OpsError, match="--gpus must be a multiple of 8, at least 64"):
        bench._arguments(["--gpus", str(gpus)])  # type: ignore[attr-defined]


def test_the_option_that_is_wrong_is_named() -> None:
    with pytest.raises(OpsError, match="--peer-gpus must be"):
        options.check_gpus(gpus=64, peer_gpus=63)


def test_the_bench_is_named_in_its_usage_and_its_data_options_have_defaults() -> None:
    parser = options.parser_of("store", "What it measures.")
    options.add_data(parser, 512)
    assert parser.prog == "clusterwatch bench store"
    found = parser.parse_args([])
    assert (found.gpus, found.folder, found.peers) == (512, None, "")
