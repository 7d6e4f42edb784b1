"""Several ranks of one verdict and cause are told in one sentence; each keeps its own finding."""

from __future__ import annotations

from clusterwatch.analysis.model import ProcessState, RankFacts
from tests.cases.jobs import Halt
from tests.cases.judged import Verdict, judge
from tests.cases.meshes import mesh, train


def judged(*stopped: int) -> Verdict:
    """Eight ranks of two hosts, of which some never come to the next call of their group."""
    job = train(mesh(tp=2, pp=1, dp=4))
    for rank in stopped:
        job.programs[rank].insert(9, Halt())
    facts = {
        rank: RankFacts(rank, host=f"host-{rank // 4}", gpu=rank % 4, process=ProcessState.RUNNING)
        for rank in range(8)
    }
    return judge(job.run(), known={"facts": facts})


def test_two_ranks_of_a_host_are_one_sentence_and_two_findings() -> None:
    found = judged(4, 5)
    assert [one["culprit_ranks"] for one in found["findings"]] == [[4], [5]]
    assert found["summary"].startswith("Ranks 4, 5 (host-1, GPUs 0, 1) never joined ")
    assert found["summary"].endswith(" of 2 mesh_dp groups; 6 ranks wait.")
    assert found["findings"][1]["summary"].startswith("Rank 5 (host-1, GPU 1) never joined")


def test_ranks_of_several_hosts_have_no_place_in_it() -> None:
    assert judged(1, 4)["summary"].startswith("Ranks 1, 4 never joined ")


def test_one_rank_keeps_its_own_sentence() -> None:
    assert judged(5)["summary"].startswith("Rank 5 (host-1, GPU 1) never joined ")
