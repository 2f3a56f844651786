"""What goes wrong on GPUs is noticed, in time, with a sentence that names who."""

from __future__ import annotations

import signal

import faults
import pytest


@pytest.mark.parametrize("size", [2, 3])
def test_a_missing_rank_is_named(size: int) -> None:
    said, _ = faults.outcomes(faults.absent, size)
    assert said[1] == "slept"
    for rank in set(range(size)) - {1}:
        spent, text, after = said[rank].split("|")
        assert "Timed out after 4000 ms" in text and "rank 1 has not called it" in text, said
        assert float(spent.split()[0]) < 10, said
        assert "rank 1 has not called it" in after, said


def test_a_missing_rank_of_a_kernel_is_named() -> None:
    said, _ = faults.outcomes(faults.absent_from_kernel, 2)
    assert "rank 1 has not called it" in said[0], said


def test_a_killed_rank_is_named() -> None:
    said, codes = faults.outcomes(faults.killed, 3, silent=(1,))
    assert codes[1] == -signal.SIGKILL
    for rank in (0, 2):
        spent, text = said[rank].split("|")
        assert "rank 1" in text.lower(), said
        assert float(spent.split()[0]) < 20, said


def test_several_groups_are_aborted_without_deadlock() -> None:
    said, _ = faults.outcomes(faults.aborts, 2)
    spent, text = said[0].split("|")
    assert float(spent) < 5 and "aborted" in text, said
    assert all("aborted" in text for text in said[1].split("|")), said


def test_groups_are_left_in_any_order() -> None:
    said, codes = faults.outcomes(faults.leaving, 3)
    assert all(float(text) < 10 for text in said.values()), said
    assert codes == [0, 0, 0]


def test_a_fault_that_nobody_sees_ends_the_process() -> None:
    said, codes = faults.outcomes(faults.ends_the_process, 2, silent=(0,))
    assert codes[0] == -signal.SIGABRT, (said, codes)
