"""The simulated building: whole nodes in racks, switches by fabric, the same for one seed."""

import pytest

from clusterwatch.simulate import topology
from clusterwatch.simulate.topology import Shape


def test_a_cluster_has_whole_nodes_in_racks_of_two():
    nodes = topology.build(20, seed=1)
    assert [node.name for node in nodes] == ["gpu-r001-n01", "gpu-r001-n02", "gpu-r002-n01"]
    assert [node.rack for node in nodes] == ["r001", "r001", "r002"]
    assert [len(node.gpus) for node in nodes] == [8, 8, 8]


def test_every_gpu_is_another_one_and_the_same_for_one_seed():
    nodes = topology.build(512, seed=1)
    uuids = [gpu.uuid for node in nodes for gpu in node.gpus]
    assert len(set(uuids)) == 512 and nodes == topology.build(512, seed=1)
    assert not set(uuids) & {gpu.uuid for node in topology.build(512, seed=2) for gpu in node.gpus}


def test_on_roce_a_rack_has_one_leaf_and_on_infiniband_a_rail_has_one():
    roce = topology.build(64, 0)
    assert roce[0].leaf == roce[1].leaf == "rsw-r001" and roce[2].leaf == "rsw-r002"
    rails = topology.build(8 * 40, 0, Shape(fabric="infiniband"))
    assert rails[0].leaf is None and len(set(rails[0].leaves)) == 8
    assert rails[0].leaves == rails[31].leaves != rails[32].leaves


def test_a_pod_has_192_racks_and_spines_of_its_own():
    nodes = topology.build(24_576, 0)
    assert len({node.pod for node in nodes}) == 8
    assert nodes[383].pod == "p01" and nodes[384].pod == "p02"
    assert not set(nodes[0].spines) & set(nodes[384].spines)


def test_an_nvlink_domain_of_72_is_a_rack_of_18_trays():
    nodes = topology.build(144, 0, Shape(4, 72))
    assert len(nodes) == 36 and len({node.nvlink_domain for node in nodes}) == 2
    assert {node.rack for node in nodes[:18]} == {"r001"}
    assert nodes[0].gpus[0].nvlink_domain == nodes[17].gpus[3].nvlink_domain == "nvl-001"
    assert nodes[0].gpus[0].model == "NVIDIA GB200"


@pytest.mark.parametrize("sizes", [(0, 0), (500, 0), (8, 12), (8, -8)])
def test_impossible_shapes_are_refused(sizes: tuple[int, int]):
    with pytest.raises(ValueError, match="GPUs"):
        Shape(*sizes)


def test_no_gpu_is_no_cluster():
    with pytest.raises(ValueError, match="at least one"):
        topology.build(0, 0)
