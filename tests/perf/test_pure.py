"""Sizes, bandwidths, data and the table's form: nothing here starts a rank."""

import numpy as np
import pytest
from accl_py.errors import InvalidArgument
from accl_py.perf import cli, data, table
from accl_py.perf.sizes import COLLECTIVES, bandwidths, parse_size, progression
from hypothesis import given
from hypothesis import strategies as st


def test_sizes_are_binary():
    assert [parse_size(t, "-b") for t in ("8", "64K", "1m", "2G", "4KB")] == [
        8,
        65536,
        1 << 20,
        2 << 30,
        4096,
    ]


@pytest.mark.parametrize("text", ["", "-1", "1.5M", "1T", "M", "1 K B"])
def test_bad_sizes_are_refused(text):
    with pytest.raises(InvalidArgument, match="expected bytes such as"):
        parse_size(text, "-b")


def test_progressions():
    assert list(progression(8, 64, 2, 1)) == [8, 16, 32, 64]
    assert list(progression(8, 20, 1, 6)) == [8, 14, 20]
    assert list(progression(0, 4, 2, 2)) == [0, 2, 4]


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("alltoall", 0.75),
        ("broadcast", 1),
        ("sendrecv", 1),
    ],
)
def test_busbw_factors(name, factor):
    algbw, busbw = bandwidths(COLLECTIVES[name], 4_000_000_000, 2.0, 4)
    assert algbw == pytest.approx(2.0)
    assert busbw == pytest.approx(2.0 * factor)


@given(st.integers(0, 1 << 30), st.sampled_from([1, 2, 4, 8]), st.integers(1, 64))
def test_a_row_never_prints_more_bytes_than_asked(size, itemsize, ranks):
    for shape in COLLECTIVES.values():
        printed = shape.bytes(shape.count(size, itemsize, ranks), itemsize, ranks)
        assert size - itemsize * ranks < printed <= size


def test_a_row_has_the_form_of_nccl_tests():
    half = table.Half(12.346e-6, 1.5, 2.25, 0)
    row = table.Row(1024, 256, "float", "sum", -1, half, None)
    assert table.line(row) == (
        "        1024           256     float     sum      -1    12.35    1.50    2.25       0"
        "      N/A     N/A     N/A     N/A"
    )
    assert table.json_row(row)["out_of_place"] == {
        "time": pytest.approx(12.346),
        "alg_bw": 1.5,
        "bus_bw": 2.25,
        "nwrong": 0,
    }


def test_wrong_elements_are_counted():
    right = data.as_array(np.arange(10), "float")
    got = right.copy()
    got[[2, 5]] += 1
    assert data.wrong_elements(got, right) == 2
    assert data.wrong_elements(np.full(3, np.nan, np.float32), np.ones(3, np.float32)) == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["teleport"], "Collective 'teleport' is unknown"),
        (["all_reduce", "-b", "2M", "-e", "1M"], "-b 2M is above -e 1M"),
        (["all_reduce", "-n", "0"], "-n is 0; expected at least 1"),
        (["all_reduce", "-o", "median"], "-o is 'median'; expected one of: sum"),
        (["all_reduce", "-d", "quad"], "-d is 'quad'"),
        (["all_reduce", "-a", "7"], "-a is 7"),
        (["all_reduce", "--ranks", "0"], "--ranks is 0"),
        (["all_reduce", "--ranks", "99999"], "99999 local ranks need about"),
        (["all_reduce", "-G", "2"], "-G is for GPUs only; expected --device cuda with it"),
        (["all_reduce", "-C", "1"], "-C 1 is for GPUs only"),
        (["all_reduce", "--share-gpu"], "--share-gpu is for GPUs only"),
        (["all_reduce", "--device", "cuda", "-G", "-1"], "-G is -1; expected at least 0"),
        (["all_reduce", "--device", "cuda", "-G", "1", "-I"], "expected neither -I nor -z with it"),
        (["all_reduce", "--device", "cuda", "-C", "1", "-I"], "expected one of them"),
        (["all_reduce", "--device", "cuda", "--against", "nccl"], "--against compares on the CPU"),
        (["all_reduce", "--split", "XOR 1"], "--split is 'XOR 1'; expected a word of AND"),
    ],
)
def test_bad_options_are_sentences(words, text, capsys):
    assert cli.main(words) == cli.EXIT_USAGE
    assert text in capsys.readouterr().err


def test_wrong_results_are_printed_and_end_with_1(monkeypatch, capsys, tmp_path):
    right = data.reduced
    monkeypatch.setattr(data, "reduced", lambda *a: right(*a) + 1)
    words = [
        "all_reduce",
        "-b",
        "12",
        "-e",
        "12",
        "--local-rank",
        "0",
        "--local-store",
        str(tmp_path),
        "--ranks",
        "1",
    ]
    assert cli.main(words) == cli.EXIT_WRONG
    printed = capsys.readouterr().out
    assert "# Out of bounds values : 6 FAILED" in printed
