"""A chaos run is a function of its seed."""

from itertools import islice
from pathlib import Path

from tests.chaos.aof import cut_tail, transaction_ends
from tests.chaos.plan import FAULT_WEIGHTS, LOSSY, REQUEST_WEIGHTS, fault_kinds, faults, number_of, requests


def test_the_same_seed_gives_the_same_run() -> None:
    assert list(requests(5, 50)) == list(requests(5, 50))
    assert list(requests(5, 50)) != list(requests(6, 50))
    kinds = fault_kinds(lossy=True)
    assert list(islice(faults(5, kinds, every=0.4), 50)) == list(islice(faults(5, kinds, every=0.4), 50))


def test_all_kinds_of_requests_and_faults_are_drawn() -> None:
    assert {request.kind for request in requests(1, 2000)} == set(REQUEST_WEIGHTS)
    drawn = {fault.kind for fault in islice(faults(1, fault_kinds(lossy=True), every=0.4), 2000)}
    assert drawn == set(FAULT_WEIGHTS)
    assert set(fault_kinds(lossy=False)) == set(FAULT_WEIGHTS) - set(LOSSY)


def test_every_prompt_names_its_request() -> None:
    planned = list(requests(1, 200))
    assert [{number_of(prompt) for prompt in request.prompts} for request in planned] == [{n} for n in range(200)]
    assert len({prompt for request in planned for prompt in request.prompts}) == sum(len(r.prompts) for r in planned)


def test_faults_come_at_the_rate_asked_for() -> None:
    last = list(islice(faults(1, ["worker_kill"], every=0.4), 1000))[-1]
    assert 360 < last.at < 440


def test_a_tail_is_cut_between_transactions(tmp_path: Path) -> None:
    commands = [["SET", "a", "1"], ["MULTI"], ["SET", "b", "2\r\n"], ["EXEC"], ["SET", "c", "3"]]
    parts = [
        f"*{len(c)}\r\n{''.join(f'${len(word)}' + chr(13) + chr(10) + word + chr(13) + chr(10) for word in c)}"
        for c in commands
    ]
    data = "".join(parts).encode()
    ends = [len("".join(parts[:number])) for number in (1, 4, 5)]
    assert transaction_ends(data) == ends
    assert transaction_ends(data[:-3]) == ends[:2]  # a torn command
    path = tmp_path / "appendonly.aof.1.incr.aof"
    path.write_bytes(data)
    cut_tail(tmp_path, share=0.5)
    assert path.read_bytes() == data[: ends[1]]
