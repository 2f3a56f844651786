"""Ranks whose rules differ are stopped with a sentence, and nobody waits for anybody."""

import fcntl
import os
import struct
import time
from pathlib import Path

import pytest
from nccl_caller import DIFFER, INVALID_USAGE, LL, RING, SUCCESS, Tuner, legal

RING_LL = "allreduce,0,-1,ring,ll,-1,-1,-1,-1,-1\n"
TREE_LL = "allreduce,0,-1,tree,ll,-1,-1,-1,-1,-1\n"
EMPTY_DIGEST = "cbf29ce484222325"


def digest_of(text: str) -> str:
    from accl_py.rules import Rules

    return Rules.parse(text, "text").digest()


def board(communicator: int) -> Path:
    return Path(f"/dev/shm/accl_tuner-{os.geteuid()}-{communicator:016x}")


def sentences(answer) -> list[str]:
    return [text for level, text in answer["said"] if level == 2]


def init(rank, communicator, **order):
    return rank.do("init", name="c", communicator=communicator, **order)


@pytest.mark.parametrize("version", [5, 6])
def test_equal_rules_pass_and_leave_nothing(rank, communicator, version):
    for_the_cpu = "broadcast,0,-1,direct,-1,-1,-1,-1,-1,-1,cpu\n"
    ranks = [rank(RING_LL), rank("# a comment\n" + RING_LL), rank(RING_LL + for_the_cpu)]
    for one in ranks:
        assert init(one, communicator, version=version)["result"] == SUCCESS
    assert board(communicator).stat().st_mode & 0o777 == 0o600
    for one in ranks:
        assert one.do("ask", name="c") == {"chosen": [RING, LL], "channels": 0, "said": []}
        assert board(communicator).exists()
        assert one.do("finalize", name="c")["result"] == SUCCESS
    assert not board(communicator).exists()
    for one in ranks:
        assert one.end() == 0 and one.stderr() == ""


@pytest.mark.parametrize("version", [5, 6])
def test_different_rules_stop_init_with_a_sentence(rank, communicator, version):
    first, second = rank(RING_LL), rank(TREE_LL)
    assert init(first, communicator, version=version)["result"] == SUCCESS
    answer = init(second, communicator, version=version)
    assert answer["result"] == INVALID_USAGE
    (sentence,) = sentences(answer)
    for word in (digest_of(RING_LL), digest_of(TREE_LL), "ACCL_RULES", "hang"):
        assert word in sentence
    assert sentence in second.stderr()


def test_one_verdict_for_all_who_come_later(rank, communicator):
    first, second, third, fourth = (rank(RING_LL), rank(TREE_LL), rank(RING_LL), rank(TREE_LL))
    assert init(first, communicator)["result"] == SUCCESS  # nobody was there to differ from
    for late in (second, third, fourth):
        answer = init(late, communicator)
        assert answer["result"] == INVALID_USAGE
        assert digest_of(RING_LL) in sentences(answer)[0]
    # The one that had passed cannot be failed any more: it says why, once, and leaves NCCL alone.
    answer = first.do("ask", name="c")
    assert digest_of(TREE_LL) in sentences(answer)[0]
    assert answer["chosen"] == [0, 0]
    assert sentences(first.do("ask", name="c")) == []
    assert first.stderr().count("different rules") == 1


def test_the_verdict_stays_while_a_refused_rank_lives(rank, communicator):
    first, second, third = rank(RING_LL), rank(TREE_LL), rank(RING_LL)
    init(first, communicator)
    init(second, communicator)
    answer = first.do("finalize", name="c")  # NCCL tears down before anything was asked
    assert digest_of(TREE_LL) in sentences(answer)[0]
    first.end()
    assert init(third, communicator)["result"] == INVALID_USAGE
    third.end()
    assert board(communicator).exists()
    assert second.end() == 0
    assert not board(communicator).exists()


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("odd", [None, "broken\n"])
def test_rules_here_and_none_there_differ(rank, communicator, order, odd):
    ranks = [rank(RING_LL), rank(odd)]
    if order:
        ranks.reverse()
    assert init(ranks[0], communicator)["result"] == SUCCESS
    answer = init(ranks[1], communicator)
    assert answer["result"] == INVALID_USAGE
    sentence = sentences(answer)[-1]
    assert "another has none" in sentence or "no rules" in sentence


def test_ranks_that_all_have_none_agree(rank, communicator):
    for rules in (None, "broken\n", "# empty\n"):
        assert init(rank(rules), communicator)["result"] == SUCCESS


def test_communicators_are_apart(rank, communicator):
    first, second = rank(RING_LL), rank(TREE_LL)
    assert first.do("init", name="a", communicator=communicator)["result"] == SUCCESS
    assert second.do("init", name="b", communicator=communicator + (1 << 20))["result"] == SUCCESS
    assert init(second, communicator)["result"] == INVALID_USAGE
    assert second.do("ask", name="b")["chosen"] == [0, LL]  # the other one goes on


def test_uneven_ranks_of_a_node_wait_for_nobody(rank, communicator):
    """Three here of seven on two nodes, one of which never loads the plugin."""
    start = time.monotonic()
    for _ in range(3):
        one = rank(RING_LL)
        init(one, communicator, ranks=7, nodes=2)
    assert time.monotonic() - start < 20  # the interpreters' starts


def test_a_killed_rank_stops_nobody(rank, communicator):
    first, second = rank(TREE_LL), rank(TREE_LL)
    assert init(first, communicator)["result"] == SUCCESS
    assert init(second, communicator)["result"] == SUCCESS
    first.kill()
    assert second.do("finalize", name="c")["result"] == SUCCESS
    assert not board(communicator).exists()
    third = rank(TREE_LL)
    assert init(third, communicator)["result"] == SUCCESS
    third.kill()
    assert board(communicator).exists()  # nobody was there to clean up
    # The next run, of the same name or another, takes no notice of what the dead one said.
    fourth = rank(RING_LL)
    assert init(fourth, communicator)["result"] == SUCCESS
    assert fourth.do("ask", name="c")["chosen"] == [RING, LL]
    fourth.kill()
    fifth = rank(TREE_LL)
    assert init(fifth, communicator + (1 << 20))["result"] == SUCCESS
    assert not board(communicator).exists()


def test_a_refused_rank_that_is_killed_leaves_no_verdict(rank, communicator):
    first, second = rank(TREE_LL), rank(RING_LL)
    init(first, communicator)
    assert init(second, communicator)["result"] == INVALID_USAGE
    first.kill()
    second.kill()
    assert init(rank(RING_LL), communicator)["result"] == SUCCESS


def test_a_child_that_lives_on_keeps_no_page(rank, communicator):
    first = rank(RING_LL)
    init(first, communicator)
    child = first.do("fork")["child"]
    try:
        first.kill()
        assert init(rank(TREE_LL), communicator)["result"] == SUCCESS
    finally:
        os.kill(child, 9)


def test_garbage_under_the_name_is_wiped(rank, communicator):
    board(communicator).write_bytes(b"\xff" * 100)
    os.chmod(board(communicator), 0o600)
    assert init(rank(RING_LL), communicator)["result"] == SUCCESS


def test_no_agreement_to_be_had_is_a_warning(rank, communicator):
    board(communicator).mkdir()  # shm_open cannot open it
    try:
        one = rank(RING_LL)
        answer = init(one, communicator)
        assert answer["result"] == SUCCESS
        assert "cannot compare their rules" in sentences(answer)[0]
        assert one.do("ask", name="c")["chosen"] == [RING, LL]
    finally:
        board(communicator).rmdir()


def test_a_stuck_peer_holds_nobody_up_for_long(rank, communicator):
    with board(communicator).open("w+b") as file:  # as if stopped while it wipes the page
        os.chmod(file.fileno(), 0o600)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
        one = rank(RING_LL)
        one.do("init", name="other", communicator=communicator + (1 << 20))
        start = time.monotonic()
        answer = init(one, communicator)
        assert answer["result"] == SUCCESS
        assert "stayed locked" in sentences(answer)[0]
        assert time.monotonic() - start < 5
        board(communicator).unlink()


@pytest.mark.parametrize("version", [4, 5, 6])
def test_the_launchers_digest_must_be_that_of_the_rules(rank, communicator, version):
    right = rank(RING_LL, ACCL_RULES_DIGEST=digest_of(RING_LL))
    assert init(right, communicator, version=version)["result"] == SUCCESS
    wrong = rank(TREE_LL, ACCL_RULES_DIGEST=digest_of(RING_LL))
    answer = init(wrong, communicator, version=version)
    assert answer["result"] == INVALID_USAGE
    (sentence,) = sentences(answer)
    for word in ("ACCL_RULES_DIGEST", digest_of(RING_LL), digest_of(TREE_LL), "rules1.csv"):
        assert word in sentence
    assert sentence in wrong.stderr()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (None, ["ACCL_RULES is not set"]),
        ("broken\n", ["cannot be used", "rules0.csv:1"]),
        ("# empty\n", [EMPTY_DIGEST]),
    ],
)
def test_a_digest_is_asked_for_where_there_are_no_rules(rank, communicator, rules, words):
    one = rank(rules, ACCL_RULES_DIGEST=digest_of(RING_LL))
    answer = init(one, communicator)
    assert answer["result"] == INVALID_USAGE
    for word in words:
        assert word in sentences(answer)[-1]


def test_version_4_sees_the_digest_alone(rank, communicator):
    for rules in (RING_LL, TREE_LL):
        assert init(rank(rules), communicator, version=4)["result"] == SUCCESS
    assert not board(0).exists() and not board(communicator).exists()


def test_threads_as_ranks_agree(plugin, rules, communicator):
    rules(RING_LL)
    tuners = [Tuner(plugin, communicator=communicator) for _ in range(3)]
    assert {tuner.result for tuner in tuners} == {SUCCESS}
    assert plugin.give_rules(TREE_LL, everywhere=False) == ""
    odd = Tuner(plugin, communicator=communicator)
    assert odd.result == INVALID_USAGE and odd.context.value is None
    assert odd.ask() == (legal(), 0) and odd.finalize() == SUCCESS
    assert tuners[0].ask() == (legal(), 0)
    assert plugin.last().outcome == DIFFER
    for tuner in tuners:
        tuner.finalize()


def test_descriptors_are_given_back(plugin, communicator):
    def opened() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = opened()
    for i in range(50):
        Tuner(plugin, communicator=communicator + (i << 20)).finalize()
    assert opened() == before


def test_the_digest_that_the_tools_print_is_the_one_that_is_wanted(plugin, rules, communicator):
    assert digest_of("") == EMPTY_DIGEST
    rules(RING_LL)
    Tuner(plugin, communicator=communicator)
    assert any(digest_of(RING_LL) in text for _, text in plugin.said)
