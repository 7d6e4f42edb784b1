"""What a browser may say, and how often."""

import pytest

from clusterwatch.live import requests
from clusterwatch.live.requests import Ask, RequestFault, RequestRate, parse_request


def test_a_subscription_carries_the_place_held():
    request = parse_request('{"subscribe": [{"topic": "job:7", "epoch": "9f", "number": 3}]}')
    assert request.subscribe == [Ask("job:7", "9f", 3)]


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[]",
        '{"subscribe": "cluster:1"}',
        '{"subscribe": [{"topic": "job:7\\n"}]}',
        '{"subscribe": [{"topic": "job:0"}]}',
        '{"subscribe": [{"topic": "job:1 OR 1=1"}]}',
        '{"subscribe": [{"topic": "lease:1"}]}',
        '{"subscribe": [{"topic": "job:' + "9" * 40 + '"}]}',
        '{"subscribe": [{"topic": "job:7", "number": -1}]}',
        '{"subscribe": [' + ",".join(['{"topic": "job:7"}'] * (requests.TOPICS_MAX + 1)) + "]}",
        "[" * 5000,
        '{"unsubscribe": ["' + "x" * requests.REQUEST_MAX_BYTES + '"]}',
    ],
)
def test_anything_else_is_refused_with_words(text):
    with pytest.raises(RequestFault, match=r"\w"):
        parse_request(text)


def test_too_many_requests_in_a_window_are_noticed_and_later_forgiven(monkeypatch):
    clock = iter([0.0] * (requests.REQUESTS_MAX + 1) + [requests.REQUESTS_WINDOW_S + 1.0])
    monkeypatch.setattr(requests.time, "monotonic", lambda: next(clock))
    rate = RequestRate()
    outcomes = [rate.is_exceeded() for _ in range(requests.REQUESTS_MAX + 2)]
    assert outcomes == [False] * requests.REQUESTS_MAX + [True, False]
