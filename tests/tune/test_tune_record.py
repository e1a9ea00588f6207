"""The file of outcomes: what is written is read, a torn line is dropped, and another search's file is refused."""

import json

import pytest

from accdp_comm import UsageError
from accdp_comm.tune.record import Record, write_profile
from accdp_comm.tune.space import Point
from accdp_comm.tune.trial import Outcome

QUESTION = {"script": ["train.py"], "measure_s": 9.0}
OUTCOME = Outcome(Point(4, 2, 16, 1, "auto"), "ok", 100.5, 2.0, 64, 0.01, 9.0, 12.0, "optimizer", {"cpu": 50.0})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "deeper" / "trials.jsonl"


def test_what_is_written_is_read(path):
    Record(path, QUESTION).add(OUTCOME)
    again = Record(path, QUESTION)
    assert again.outcomes == [OUTCOME]
    again.add(Outcome(Point(1), "failed", reason="no"))
    del again
    assert [one.status for one in Record(path, QUESTION).outcomes] == ["ok", "failed"]


def test_a_torn_last_line_is_dropped(path):
    Record(path, QUESTION).add(OUTCOME)
    with path.open("a") as file:
        file.write('{"point": {"ran')
    Record(path, QUESTION).add(OUTCOME)
    assert Record(path, QUESTION).outcomes == [OUTCOME, OUTCOME]
    for begun in ("", '{"acc', '{"accdp_tune": 1, "scr'):  # the disk was full from the first
        path.write_text(begun)
        Record(path, QUESTION).add(OUTCOME)
        assert Record(path, QUESTION).outcomes == [OUTCOME]


def test_a_record_is_of_one_tuner_at_a_time(path):
    first = Record(path, QUESTION)
    for fresh in (False, True):
        with pytest.raises(UsageError, match="trials.jsonl: another accdp tune writes there: use another --output"):
            Record(path, QUESTION, fresh=fresh)
    first.add(OUTCOME)
    del first
    assert Record(path, QUESTION).outcomes == [OUTCOME]


def test_another_search_is_refused_and_can_be_forgotten(path):
    Record(path, QUESTION).add(OUTCOME)
    with pytest.raises(UsageError, match=r"outcomes of another search \(script differ\).*--fresh"):
        Record(path, {**QUESTION, "script": ["other.py"]})
    assert Record(path, {**QUESTION, "script": ["other.py"]}, fresh=True).outcomes == []


@pytest.mark.parametrize("data", [b"hello\n", b"[]\n", b"{}\n", b'{"accdp_tune": 1}\n{"point": 3}\n', b"a\nb", b"\xd0"])
def test_a_file_that_is_none_of_ours_stays_as_it_is(path, data):
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(UsageError, match="not a file of outcomes"):
        Record(path, {})
    assert path.read_bytes() == data


def test_profile(tmp_path):
    write_profile(tmp_path / "profile.json", OUTCOME, ["train.py", "--batch", "16"])
    assert json.loads((tmp_path / "profile.json").read_text()) == {
        "ranks_per_gpu": 2,
        "ranks": 4,
        "batch_size": 16,
        "workers": 1,
        "codec": "auto",
        "script": ["train.py", "--batch", "16"],
    }


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file/results: cannot write results there: Not a directory"):
        Record(tmp_path / "file" / "results" / "trials.jsonl", {})
