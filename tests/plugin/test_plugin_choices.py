"""What the plugin writes, and above all what it does not."""

import ctypes
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from nccl_caller import (
    ALL_GATHER,
    ALL_REDUCE,
    APPLIED,
    BROADCAST,
    FUNCTIONS,
    IGNORED,
    LEFT,
    LL,
    LL128,
    NVLS,
    PAT,
    REDUCE,
    REDUCE_SCATTER,
    RING,
    SIMPLE,
    SUCCESS,
    TREE,
    Last,
    Tuner,
    chosen,
    legal,
    plugin_path,
)

VERSIONS = [4, 5, 6]
RING_LL = "allreduce,0,-1,ring,ll,-1,-1,-1,-1,-1\n"
TREE_LL = "allreduce,0,-1,tree,ll,-1,-1,-1,-1,-1\n"


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_is_exported_with_its_members_in_place(plugin, rules, communicator, version):
    rules(RING_LL)
    assert plugin.name(version) == "ACCL-N"
    tuner = Tuner(plugin, version=version, communicator=communicator)
    assert tuner.result == SUCCESS
    table, channels = tuner.ask()
    assert chosen(table) == (RING, LL)
    assert channels == 0
    last = plugin.last()
    assert (last.version, last.communicator) == (version, 0 if version == 4 else communicator)
    assert tuner.finalize() == SUCCESS


def test_only_the_entry_points_are_visible():
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", plugin_path()], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in symbols.splitlines()}
    functions = {"force", "clear", "give_rules", "taken", "reload", "report", "error"}
    assert names == {f"ncclTunerPlugin_v{v}" for v in VERSIONS} | {
        f"accl_tuner_{f}" for f in functions
    }


def test_it_needs_no_library_of_ours_no_cuda_and_no_nccl():
    needed = subprocess.run(
        ["readelf", "-d", plugin_path()], capture_output=True, text=True, check=True
    ).stdout
    libraries = [line for line in needed.splitlines() if "(NEEDED)" in line]
    assert libraries
    for line in libraries:
        assert any(word in line for word in ("libstdc++", "libgcc_s", "libc.", "libm.", "ld-linux"))


@pytest.mark.parametrize("version", VERSIONS)
def test_no_environment_leaves_all_as_it_came(plugin, communicator, version):
    tuner = Tuner(plugin, version=version, communicator=communicator)
    assert tuner.result == SUCCESS
    for function in range(-1, 9):
        assert tuner.ask(function) == (legal(), 0)
    assert plugin.warnings() == []
    assert [text for _, text in plugin.said] == [
        "ACCL-N tuner: ACCL_RULES is not set, so NCCL chooses by itself."
    ]
    Tuner(plugin, version=version, communicator=communicator)
    assert len(plugin.said) == 1  # once a process
    tuner.finalize()


@pytest.mark.parametrize("collective", FUNCTIONS)
def test_each_entry_that_rules_may_want_can_be_had(plugin, rules, communicator, collective):
    words = {
        "tree": TREE, "ring": RING, "collnet_direct": 2, "collnet_chain": 3, "nvls": NVLS,
        "nvls_tree": 5, "pat": PAT,
    }  # fmt: skip
    protocols = {"ll": LL, "ll128": LL128, "simple": SIMPLE}
    seen = 0
    for algorithm, a in words.items():
        for protocol, p in protocols.items():
            if plugin.force(collective, algorithm, protocol):
                continue  # not legal in NCCL; the grammar's own tests say which
            seen += 1
            tuner = Tuner(plugin, communicator=communicator)
            table, channels = tuner.ask(FUNCTIONS[collective])
            wanted = legal()
            wanted[a][p] = 0.0
            assert table == wanted
            assert channels == 0
            tuner.finalize()
    assert seen == {"all_reduce": 10, "broadcast": 3, "reduce": 3}.get(collective, 6)


def test_the_first_rule_that_matches_holds(plugin, rules, communicator):
    rules(
        "# who: test\n"
        "allreduce,0,1023,tree,ll,-1,-1,-1,-1,-1\n"
        "allreduce,1024,2048,ring,simple,2,2,8,-1,-1\n"
        "allreduce,1024,4096,ring,ll128,3,-1,-1,4,-1\n"
        "allgather,0,-1,pat,simple,-1,-1,16,-1,-1\n"
        "allreduce,0,-1,direct,inline,-1,-1,-1,-1,-1,cpu\n"
    )
    two = Tuner(plugin, communicator=communicator, ranks=8, nodes=2)
    assert chosen(two.ask(bytes=0)[0]) == (TREE, LL)
    assert chosen(two.ask(bytes=1023)[0]) == (TREE, LL)
    assert two.ask(bytes=1024)[1] == 2
    assert plugin.last().line == 3
    assert chosen(two.ask(bytes=2048, pipe_ops=4)[0]) == (RING, SIMPLE)
    assert chosen(two.ask(bytes=2049, pipe_ops=4)[0]) == (RING, LL128)
    assert two.ask(bytes=2049, pipe_ops=3) == (legal(), 0)
    assert two.ask(ALL_GATHER) == (legal(), 0)  # for 16 ranks
    for function in (BROADCAST, REDUCE, REDUCE_SCATTER, 5, 6, -1):
        assert two.ask(function) == (legal(), 0)
    uneven = Tuner(plugin, communicator=communicator + (1 << 20), ranks=16, nodes=3)  # 6, 5 and 5
    assert chosen(uneven.ask(ALL_GATHER)[0]) == (PAT, SIMPLE)
    assert uneven.ask(bytes=1024) == (legal(), 0)
    huge = Tuner(plugin, version=4, ranks=2**40, nodes=2**40)
    assert chosen(huge.ask(bytes=2**63)[0]) == (0, 0)  # no match: NCCL's own
    for tuner in (two, uneven, huge):
        tuner.finalize()


def test_registered_buffers_change_nothing(plugin, rules, communicator):
    rules(RING_LL)
    tuner = Tuner(plugin, communicator=communicator)
    assert tuner.ask(registered=0) == tuner.ask(registered=1)


@pytest.mark.parametrize("version", VERSIONS)
def test_ignored_entries_are_never_written(plugin, rules, communicator, version):
    rules("allreduce,0,-1,nvls,simple,16,-1,-1,-1,-1\n")
    tuner = Tuner(plugin, version=version, communicator=communicator)
    table = legal()
    table[NVLS] = [-1.0, -1.0, -1.0]
    for size in (8, 1 << 20):
        assert tuner.ask(bytes=size, table=table) == (table, 0)
    assert plugin.last().outcome == IGNORED
    (warning,) = plugin.warnings()  # once a rule
    assert "rules.csv:1" in warning and "nvls,simple,16" in warning and "8 bytes" in warning
    ignored = plugin.last().ignored
    tuner.ask(table=table)
    assert plugin.last().ignored == ignored + 1
    assert tuner.ask()[1] == 16  # where it is legal it holds
    tuner.finalize()


def test_each_rule_warns_for_itself(plugin, rules, communicator):
    rules("allreduce,0,64,ring,ll128,-1,-1,-1,-1,-1\nallreduce,65,-1,tree,ll128,-1,-1,-1,-1,-1\n")
    tuner = Tuner(plugin, communicator=communicator)
    table = [[cost if p != LL128 else -1.0 for p, cost in enumerate(row)] for row in legal()]
    for size in (1, 2, 100, 200, 3):
        assert tuner.ask(bytes=size, table=table) == (table, 0)
    assert len(plugin.warnings()) == 2


def test_channels_stay_as_they_came_unless_a_rule_sets_them(plugin, rules, communicator):
    rules(
        "allreduce,0,64,ring,ll,-1,-1,-1,-1,-1\n"
        "allreduce,65,128,-1,-1,7,-1,-1,-1,-1\n"
        "allreduce,129,256,-1,-1,-1,-1,-1,-1,-1\n"
    )
    tuner = Tuner(plugin, communicator=communicator)
    assert tuner.ask(bytes=8)[1] == 0
    assert tuner.ask(bytes=100) == (legal(), 7)  # channels alone leave the table alone
    assert tuner.ask(bytes=200) == (legal(), 0)
    assert tuner.ask(bytes=300) == (legal(), 0)
    assert tuner.ask(bytes=8, channels=5)[1] == 5  # whatever came


def test_an_algorithm_without_protocol_keeps_nccls_order_of_protocols(plugin, rules, communicator):
    rules("allreduce,0,-1,ring,-1,-1,-1,-1,-1,-1\nallgather,0,-1,-1,ll,-1,-1,-1,-1,-1\n")
    tuner = Tuner(plugin, communicator=communicator)
    table = legal()
    table[TREE] = [1.0, 2.0, 3.0]
    table[RING] = [900.0, -1.0, 800.0]
    after, _ = tuner.ask(table=table)
    assert chosen(after) == (RING, SIMPLE)
    assert after[RING][SIMPLE] == 0.0 < after[RING][LL] < 1e-30
    assert after[RING][LL128] == -1.0
    assert [row for a, row in enumerate(after) if a != RING] == [
        row for a, row in enumerate(table) if a != RING
    ]
    table[TREE], table[PAT][LL] = [-1.0, -1.0, -1.0], 100.0
    after, _ = tuner.ask(ALL_GATHER, table=table)
    assert chosen(after) == (2, LL)
    assert after[TREE] == [-1.0] * 3


@pytest.mark.parametrize(
    "size", [(7, 3), (6, 3), (8, 3), (7, 4), (7, 2), (2, 3), (1, 1), (20, 5), (7, 0)]
)
def test_tables_of_other_sizes(plugin, communicator, size):
    """NCCL 2.24 to 2.32 have 7 x 3; whatever comes, nothing outside is touched."""
    assert plugin.force("all_reduce", "nvls", "simple", 4) == ""
    tuner = Tuner(plugin, communicator=communicator)
    algorithms, protocols = size
    if 0 in size:
        empty = [[]] if protocols == 0 else legal(1)
        assert tuner.ask(table=empty) == (empty, 0)
        return
    table = legal(algorithms, protocols)
    after, channels = tuner.ask(table=table)
    if algorithms > NVLS and protocols > SIMPLE:
        table[NVLS][SIMPLE] = 0.0
        assert (after, channels) == (table, 4)
    else:
        assert (after, channels) == (table, 0)
    last = plugin.last()
    assert (last.algorithms, last.protocols) == size
    assert list(last.after[0])[:1] == after[0][:1]


def test_null_pointers_are_survived(plugin, rules, communicator):
    rules("allreduce,0,-1,ring,ll,4,-1,-1,-1,-1,nccl,64\n")
    tuner = Tuner(plugin, communicator=communicator)
    ask = plugin.member(
        6, 16, *[ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p],
        ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
    )  # fmt: skip
    table = (ctypes.c_float * 21)(*([5.0] * 21))
    assert ask(tuner.context, ALL_REDUCE, 8, 1, None, 7, 3, 0, None) == SUCCESS
    assert ask(None, ALL_REDUCE, 8, 1, table, 7, 3, 0, None) == SUCCESS
    assert list(table) == [5.0] * 21
    assert ask(tuner.context, ALL_REDUCE, 8, 1, table, 7, 3, 0, None) == SUCCESS
    assert table[3] == 0.0
    chunk = plugin.member(
        6, 32, *[ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_int, ctypes.c_int],
        ctypes.c_int, ctypes.c_void_p,
    )  # fmt: skip
    assert chunk(tuner.context, ALL_REDUCE, 8, RING, LL, 1, None) == SUCCESS
    assert chunk(None, ALL_REDUCE, 8, RING, LL, 1, None) == SUCCESS
    assert plugin.member(6, 24, ctypes.c_void_p)(None) == SUCCESS
    assert plugin.member(4, 24, ctypes.c_void_p)(0x1234) == SUCCESS  # never was one of ours


def test_chunks_follow_the_rule_of_the_collective_at_hand(plugin, rules, communicator):
    rules(
        "allreduce,0,1000,ring,simple,-1,-1,-1,-1,-1,nccl,65536\n"
        "allreduce,1001,2000,ring,ll,-1,-1,-1,-1,-1,nccl,16\n"
        "allreduce,2001,3000,-1,simple,-1,-1,-1,-1,-1,nccl,512\n"
        "allreduce,3001,4000,ring,simple,-1,-1,-1,-1,-1\n"
        "allgather,0,-1,ring,ll128,-1,-1,-1,-1,-1,nccl,1920\n"
    )
    tuner = Tuner(plugin, communicator=communicator)
    assert tuner.chunk(1 << 20) == 1 << 20  # nothing asked yet
    tuner.ask(bytes=500)
    # The size of the chunk's question is a part of a channel's; it is not matched.
    assert tuner.chunk(1 << 20, bytes=5000) == 65536
    assert tuner.chunk(1 << 20, bytes=5000, algorithm=TREE) == 1 << 20
    assert tuner.chunk(1 << 14, protocol=LL) == 1 << 14
    assert tuner.chunk(1 << 20, ALL_GATHER) == 1 << 20
    tuner.ask(bytes=1500)
    assert tuner.chunk(1 << 14, protocol=LL) == 16
    assert tuner.chunk(1 << 14, protocol=SIMPLE) == 1 << 14
    tuner.ask(bytes=2500)
    assert {tuner.chunk(1 << 20, algorithm=a) for a in (TREE, RING, PAT)} == {512}
    tuner.ask(ALL_GATHER)
    assert tuner.chunk(4800, ALL_GATHER, protocol=LL128) == 1920
    assert tuner.chunk(1 << 20) == 512  # the other collective's is not forgotten
    for size in (3500, 5000):
        tuner.ask(bytes=2500)
        tuner.ask(bytes=size)
        assert tuner.chunk(777) == 777
    assert tuner.chunk(777, function=9) == 777 and tuner.chunk(777, function=-1) == 777
    ignored = legal()
    ignored[RING][SIMPLE] = -1.0
    tuner.ask(bytes=500, table=ignored)
    assert tuner.chunk(1 << 20) == 1 << 20
    last = plugin.last()
    assert (last.chunk_before, last.chunk_after) == (1 << 20, 1 << 20)


def test_force_and_clear(plugin, rules, communicator):
    rules(RING_LL)
    tuner = Tuner(plugin, communicator=communicator)
    assert plugin.force("all_reduce", "tree", "simple", 3, 4096) == ""
    table, channels = tuner.ask()
    assert (chosen(table), channels) == ((TREE, SIMPLE), 3)
    assert tuner.chunk(1 << 20, algorithm=TREE) == 4096
    last = plugin.last()
    assert (last.outcome, last.forced, last.line, last.entries) == (APPLIED, 1, 0, 1)
    assert (last.message_bytes, last.function, last.ranks) == (8, ALL_REDUCE, 8)
    assert (last.channels_before, last.channels_after) == (0, 3)
    assert [list(row)[:3] for row in last.before[:7]] == legal()
    assert [list(row)[:3] for row in last.after[:7]] == table
    assert plugin.force("allreduce", "", "-1") == ""  # leave it to NCCL, and no rule either
    assert tuner.ask() == (legal(), 0)
    assert plugin.last().outcome == LEFT
    assert tuner.ask(ALL_GATHER) == (legal(), 0)
    plugin.clear()
    assert chosen(tuner.ask()[0]) == (RING, LL)
    assert plugin.last().line == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("all_to_all", "ring"), ["all_to_all", "all_reduce"]),
        ((None,), ["expected all_reduce"]),
        (("all_reduce", "direct"), ["'direct'", "tree, ring"]),
        (("all_reduce", "ring", "llama"), ["'llama'", "ll128"]),
        (("broadcast", "tree", "ll"), ["'tree'"]),
        (("all_reduce", "nvls", "ll"), ["'ll'"]),
        (("all_reduce", "ring", "ll", 65), ["65"]),
        (("all_reduce", "ring", "ll", -1), ["-1", "1 to 64"]),
        (("all_reduce", "ring", "ll", 1, 15), ["15"]),
        (("all_reduce", "ring", "", 1, 512), ["protocol"]),
        (("all_reduce", "ring,ll,1,-1,-1,-1,-1\nallgather,0,-1,ring"), []),
        (("all_reduce", "# ring"), []),
    ],
)
def test_a_choice_that_is_none_changes_nothing(plugin, communicator, arguments, words):
    assert plugin.force("all_reduce", "tree", "ll") == ""
    sentence = plugin.force(*arguments)
    assert sentence
    for word in words:
        assert word in sentence
    tuner = Tuner(plugin, communicator=communicator)
    assert chosen(tuner.ask()[0]) == (TREE, LL)
    assert tuner.ask(ALL_GATHER) == (legal(), 0)


def test_a_second_open_of_the_same_path_drives_the_first(plugin, communicator):
    other = ctypes.CDLL(str(plugin_path()))
    assert other.accl_tuner_force(b"all_reduce", b"ring", b"ll128", 0, 0) == 0
    assert chosen(Tuner(plugin, communicator=communicator).ask()[0]) == (RING, LL128)


def test_given_rules_are_of_the_communicators_made_meanwhile(plugin, rules, communicator):
    rules(RING_LL)
    ids = count(communicator, 1 << 20)
    older = ThreadPoolExecutor(1)
    older.submit(int).result()  # its thread is there before
    before = Tuner(plugin, communicator=next(ids))
    assert plugin.give_rules(TREE_LL, everywhere=False) == ""
    mine = Tuner(plugin, communicator=next(ids))
    others = older.submit(Tuner, plugin, communicator=next(ids)).result()
    with ThreadPoolExecutor(1) as younger:  # as NCCL starts one for the call that it serves
        inherited = younger.submit(Tuner, plugin, communicator=next(ids)).result()
        assert plugin.taken() == 2
        assert plugin.give_rules(None, everywhere=False) == ""
        late = younger.submit(Tuner, plugin, communicator=next(ids)).result()
    assert plugin.taken() == 0
    after = Tuner(plugin, communicator=next(ids))
    for tuner in (mine, inherited):
        assert chosen(tuner.ask()[0]) == (TREE, LL)
    for tuner in (before, others, late, after):
        assert chosen(tuner.ask()[0]) == (RING, LL)
    assert plugin.give_rules("allreduce,0,-1,tree,simple,-1,-1,-1,-1,-1\n") == ""
    others = older.submit(Tuner, plugin, communicator=next(ids)).result()
    assert chosen(others.ask()[0]) == (TREE, SIMPLE)
    older.shutdown()
    sentence = plugin.give_rules("allreduce,0,-1,tre,simple,-1,-1,-1,-1,-1\n", "mine.csv")
    assert "mine.csv:1" in sentence and "'tre'" in sentence


def test_a_thread_has_its_own_name_back_and_may_end_with_rules(plugin, communicator):
    name = Path("/proc/thread-self/comm")
    former = name.read_text()
    for _ in range(2):  # replaced, not ended
        assert plugin.give_rules(TREE_LL, everywhere=False) == ""
        assert name.read_text().startswith("accl:")
    assert "mine.csv" in plugin.give_rules("nonsense\n", "mine.csv", everywhere=False)
    assert chosen(Tuner(plugin, communicator=communicator).ask()[0]) == (TREE, LL)
    assert plugin.give_rules(None, everywhere=False) == ""
    assert plugin.give_rules(None, everywhere=False) == ""
    assert name.read_text() == former
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(plugin.give_rules, TREE_LL, everywhere=False).result() == ""
        assert pool.submit(name.read_text).result().startswith("accl:")
    assert Tuner(plugin, communicator=communicator + (1 << 20)).ask() == (legal(), 0)


def test_a_report_of_another_version_is_refused(plugin):
    for size in (0, ctypes.sizeof(Last) - 8, ctypes.sizeof(Last) + 8):
        last = Last(size=size)
        assert plugin.library.accl_tuner_report(ctypes.byref(last)) == 1
        assert "size" in plugin.error()
    assert plugin.library.accl_tuner_report(None) == 1


def test_communicators_are_counted(plugin, communicator):
    start = plugin.last()
    first = Tuner(plugin, communicator=communicator)
    second = Tuner(plugin, communicator=communicator + (1 << 20))
    now = plugin.last()
    assert now.communicators == start.communicators + 2 and now.live == start.live + 2
    assert second.finalize() == SUCCESS
    assert second.finalize() == SUCCESS  # twice is once
    first.ask()
    assert first.finalize() == SUCCESS
    assert plugin.last().live == start.live


def test_several_communicators_and_threads_at_once(plugin, rules, communicator):
    rules(
        "allreduce,0,-1,ring,ll,2,-1,2,-1,-1\n"
        "allreduce,0,-1,tree,simple,4,-1,4,-1,-1\n"
        "allreduce,0,-1,ring,simple,8,-1,8,-1,-1\n"
    )
    wanted = {2: ((RING, LL), 2), 4: ((TREE, SIMPLE), 4), 8: ((RING, SIMPLE), 8)}

    def work(number: int) -> None:
        ranks = [2, 4, 8][number % 3]
        for round in range(10):
            tuner = Tuner(
                plugin,
                version=[4, 5, 6][round % 3],
                communicator=communicator + ((number % 3) << 20),
                ranks=ranks,
                logger=None,
            )
            assert tuner.result == SUCCESS
            for _ in range(10):
                table, channels = tuner.ask()
                assert (chosen(table), channels) == wanted[ranks]
            assert tuner.finalize() == SUCCESS

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(12)))


def test_it_loads_and_ends_in_a_bare_interpreter():
    """Without finalize, after finalize, and with communicators left over at exit."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from nccl_caller import *\n"
        "from pathlib import Path\n"
        "p = Plugin(Path(sys.argv[2])); t = [Tuner(p, communicator=os.getpid() << 32 | i)"
        " for i in range(4)]\n"
        "t[2].finalize(); t[0].finalize(); assert t[1].ask() == (legal(), 0); os.environ.clear()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, Path(__file__).parent, plugin_path()],
        capture_output=True,
        text=True,
        env={},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
