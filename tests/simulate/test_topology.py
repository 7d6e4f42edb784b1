"""The simulated building: whole nodes in racks of two, the same for one seed."""

import pytest

from clusterwatch.simulate import topology


def test_512_gpus_are_64_nodes_in_32_racks_with_one_leaf_each():
    nodes = topology.build(512, seed=0)
    assert len(nodes) == 64
    assert len({node.rack for node in nodes}) == len({node.leaf for node in nodes}) == 32
    assert (nodes[33].name, nodes[33].rack, nodes[33].leaf) == ("gpu-r017-n02", "r017", "rsw-r017")


def test_every_gpu_of_the_cluster_is_one_of_a_kind():
    gpus = [gpu for node in topology.build(2_048, seed=3) for gpu in node.gpus]
    for identity in ("uuid", "serial"):
        assert len({getattr(gpu, identity) for gpu in gpus}) == 2_048


def test_the_seed_decides():
    assert topology.build(64, seed=1) == topology.build(64, seed=1)
    assert topology.build(64, seed=1)[0].machine_id != topology.build(64, seed=2)[0].machine_id


def test_a_size_that_fills_no_node_gets_a_whole_one():
    assert len(topology.build(9, seed=0)) == 2
    with pytest.raises(ValueError, match="at least one"):
        topology.build(0, seed=0)
