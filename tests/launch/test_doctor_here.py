"""`accdp doctor` on this machine, where everything that the tests need must be in order."""

import json

import jobs
import pytest
from running import ACCDP

from accdp_comm import cli
from accdp_comm.doctor import command


@pytest.mark.timeout(300)  # it imports torch twice
def test_this_machine_is_healthy_as_text_and_json():
    result = jobs.run([*ACCDP, "doctor", "--json"], timeout=280)
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == [check.name for check in command.table()]
    assert result.returncode == 0 and not [row for row in rows if row["verdict"] == "fail"], str(result)
    assert all(row["advice"] for row in rows if row["verdict"] != "ok")


def test_a_failure_is_the_exit_code(monkeypatch, capsys):
    rows = [check for check in command.table() if check.name in ("cores", "environment")]
    monkeypatch.setattr(command, "table", lambda ranks: rows)
    monkeypatch.setenv("PMI_FD", "999")
    monkeypatch.setenv("PMI_SIZE", "4")
    for name in ("RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "fail  environment" in said and "-> correct or unset it" in said and said.endswith("0 warn, 1 fail\n")


def test_gpus_and_mps_are_looked_at(machine, monkeypatch):
    from accdp_comm.doctor import gpu

    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    assert gpu.devices().found.startswith("2 by nvidia-smi")
    assert gpu.mps().verdict == "ok" and gpu.mps().found.startswith("can be used")
    machine.edit_gpus("Disabled", "Enabled")
    assert gpu.mps().verdict == "warn" and "divided by MIG" in gpu.mps().found
