"""A shell that has evaluated what accl-tune plugin prints steers NCCL, and guards the file."""

import os
import subprocess
import sys

import pytest
from nccl_caller import INVALID_USAGE, LL, RING, SUCCESS

RING_LL = "allreduce,0,-1,ring,ll,-1,-1,-1,-1,-1\n"
NAMES = ("NCCL_TUNER_PLUGIN", "ACCL_RULES", "ACCL_RULES_DIGEST")


@pytest.fixture
def shell(tmp_path):
    """The variables of a shell in the rules' own folder."""
    (tmp_path / "rules.csv").write_text(RING_LL)
    path = os.pathsep.join(os.path.abspath(part or ".") for part in sys.path)
    said = subprocess.run(
        ["sh", "-euc", f'eval "$("{sys.executable}" -m accl_tune plugin rules.csv)"; env -0'],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    variables = dict(item.split("=", 1) for item in said.stdout.split("\0") if "=" in item)
    return {name: variables[name] for name in NAMES}


def test_the_shell_steers_and_refuses_a_file_that_has_changed(rank, shell, communicator, tmp_path):
    environment = {**shell, "ACCL_TEST_PLUGIN": shell["NCCL_TUNER_PLUGIN"]}
    ranks = [rank(**environment), rank(**environment)]
    for one in ranks:
        made = one.do("init", name="c", communicator=communicator, version=5)
        assert made["result"] == SUCCESS
        assert one.do("ask", name="c")["chosen"] == [RING, LL]
    (tmp_path / "rules.csv").write_text("# a comment changes nothing\n" + RING_LL)
    made = rank(**environment).do("init", name="c", communicator=communicator + 1)
    assert made["result"] == SUCCESS
    (tmp_path / "rules.csv").write_text(RING_LL.replace("ring", "tree"))
    made = rank(**environment).do("init", name="c", communicator=communicator + 2)
    assert made["result"] == INVALID_USAGE
    (sentence,) = [text for level, text in made["said"] if level == 2]
    assert f"ACCL_RULES_DIGEST is '{shell['ACCL_RULES_DIGEST']}'" in sentence
