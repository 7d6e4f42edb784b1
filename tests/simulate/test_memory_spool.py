"""A spool in memory keeps order, forgets what is acknowledged, and counts what it had to drop."""

from clusterwatch.simulate.memory_spool import MAX_BYTES, MIN_BYTES, MemorySpool, fair_bytes
from collectors.wire import codec, records


def event(number: int, text: str = "") -> records.Event:
    return records.Event(number, "test", "test", "info", text)


def times(spool: MemorySpool, after: int = 0) -> list[int]:
    return [codec.decode_record(payload).t_ns for _, payload in spool.read("urgent", after, 100, 10**6)]


def test_records_stay_until_they_are_acknowledged():
    spool = MemorySpool()
    for number in range(1, 5):
        spool.append(event(number))
    assert times(spool) == [1, 2, 3, 4] and times(spool, after=2) == [3, 4]
    spool.ack("urgent", 3)
    assert times(spool) == [4] and spool.acked("urgent") == 3
    assert spool.next_sequences() == records.LaneNext(urgent=5, bulk=1)


def test_a_read_is_bounded_but_never_empty_handed():
    spool = MemorySpool()
    for number in range(1, 5):
        spool.append(event(number, "x" * 100))
    assert [sequence for sequence, _ in spool.read("urgent", 0, 2, 10**6)] == [1, 2]
    assert [sequence for sequence, _ in spool.read("urgent", 0, 100, 1)] == [1]


def test_a_full_spool_drops_the_oldest_and_says_so():
    spool = MemorySpool(max_bytes=1_000)
    for number in range(1, 21):
        spool.append(event(number, "x" * 100))
    assert spool.dropped_total > 0
    assert times(spool)[-1] == 20
    lost = spool.dropped_total
    spool.report_drops(99)
    report = codec.decode_record(spool.read("urgent", 20, 1, 10**6)[0][1])
    assert isinstance(report, records.Dropped)
    assert report.counts == {"records": lost} and (report.first_sequence, report.last_sequence) == (1, lost)


def test_a_new_epoch_sends_what_is_left_from_one_on():
    spool = MemorySpool()
    epoch = spool.epoch
    for number in range(1, 4):
        spool.append(event(number))
    spool.ack("urgent", 2)
    spool.begin_epoch()
    assert spool.epoch != epoch
    assert [sequence for sequence, _ in spool.read("urgent", 0, 9, 999)] == [1]
    assert times(spool) == [3] and spool.next_sequences().urgent == 2


def test_spools_of_the_largest_cluster_stay_below_a_gibibyte_together():
    assert fair_bytes(2) == MAX_BYTES and fair_bytes(10**6) == MIN_BYTES
    assert 2 * 3_072 * fair_bytes(3_072) < 2**30
