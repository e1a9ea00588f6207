"""Steps are found in what ranks log: in its order of signs, in any sequence of collectives, in a ring that ran over."""

import json
import subprocess
import sys

import numpy as np
import pytest
from made_up_logs import log, word

from accdp_comm import steps
from accdp_comm.tune import events

TRAIN = "abc" * 40


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("a" * 50, 1),
        ("ab" * 30, 2),
        (TRAIN, 3),
        ("aaab" * 30, 4),  # equal buckets
        ("a" * 29 + "b", 0),  # nothing repeats yet
        (("a" * 29 + "b") * 6, 30),
        ("xyz" + TRAIN, 3),  # DDP's first iteration is another one
        ((TRAIN + "v") * 4, 3),  # a mean loss at the end of each epoch
        (("abc" * 22 + "vvw") * 5, 3),  # an evaluation after 22 steps
        ("abcabc", 0),
        ("", 0),
        ("abcdefghijkl", 0),
    ],
)
def test_period(text, length):
    assert events.period(np.array(word(text), np.uint64)) == length


@pytest.mark.parametrize("length", [1, 2, 7, 31, 200])
def test_period_of_random_words(length):
    letters = np.random.default_rng(length).permutation(np.arange(1, length + 1, dtype=np.uint64))
    assert events.period(np.tile(letters, 6)) == length


def test_steps_by_collectives_end_with_a_period():
    found = events.find_steps(log(word("abc" * 20), every_s=1).events)
    assert found.seen_by == "collectives" and found.samples is None
    assert found.seconds.tolist() == pytest.approx([100 + 3 * step + 2 for step in range(20)])


def test_optimizer_counts_more_than_collectives():
    """Three equal buckets a step, which look like three steps."""
    step = [*word("aaa"), steps.OPTIMIZER]
    found = events.find_steps(log(step * 10, every_s=1).events)
    assert (found.seen_by, len(found.seconds), found.seconds[0]) == ("optimizer", 10, 103)


def test_of_several_optimizers_the_busiest_counts():
    step = [steps.OPTIMIZER, steps.OPTIMIZER, steps.OPTIMIZER | 1]
    found = events.find_steps(log(step * 10, every_s=1).events)
    assert len(found.seconds) == 20


def test_what_the_script_says_counts_most():
    step = [*word("ab"), steps.OPTIMIZER, *word("ab"), steps.OPTIMIZER, steps.STEP]
    found = events.find_steps(log(step * 10, samples=8).events)
    assert (found.seen_by, len(found.seconds)) == ("step()", 10)
    assert found.samples is not None and found.samples.tolist() == [8.0] * 10
    assert events.find_steps(log(step * 10).events).samples is None


# A process may have one log, and keeps it: so this is another one.
_WRITES = """
import sys
from accdp_comm import Communicator, _core, step, steps
with Communicator() as comm:
    for number in range(int(sys.argv[1])):
        step(samples=number)
    comm.barrier()
"""


@pytest.mark.parametrize("count", [0, 3, steps.CAPACITY - 1, steps.CAPACITY + 10])
def test_what_a_rank_logs_is_read_back(tmp_path, count):
    folder = tmp_path / "steps"
    folder.mkdir()
    command = [sys.executable, "-c", _WRITES, str(count)]
    subprocess.run(command, env=_environment(folder), check=True, timeout=60)
    (found,) = events.read(folder)
    assert (found.rank, found.size) == (0, 1)
    said = found.events["label"] == steps.STEP
    kept = range(max(0, count - steps.CAPACITY + 1), count)  # the barrier comes after them
    assert found.events["samples"][said].tolist() == [*kept]
    assert said.tolist() == [True] * len(kept) + [False]
    assert (np.diff(found.events["time_ns"]) >= 0).all()


def _environment(folder):
    import jobs

    return jobs.environment(ACCDP_STEP_LOG=str(folder))


def test_a_process_that_a_rank_starts_leaves_its_log_alone(tmp_path):
    """It has got the rank's variables, and is rank 0 of a world of its own. Who comes after the rank begins anew."""
    one_of_two = "from accdp_comm import steps; steps.begin(0, 2); steps.step(3)"
    alone = "from accdp_comm import Communicator, steps; Communicator().barrier(); steps.step()"
    run = [sys.executable, "-c"]
    inside = f"{one_of_two}; import subprocess, sys; subprocess.run([sys.executable, '-c', {alone!r}], check=True)"
    for code, size in ((inside, 2), (alone, 1)):
        subprocess.run([*run, code], env=_environment(tmp_path), check=True, timeout=60)
        (found,) = events.read(tmp_path)
        assert (found.size, found.events["label"].tolist().count(steps.STEP)) == (size, 1)


def test_a_new_log_leaves_the_old_one_to_who_has_it_mapped(tmp_path):
    """A file that is made shorter ends who reads what it had."""
    path = tmp_path / "rank-0.events"
    path.write_bytes(bytes(1 << 20))
    code = (
        "import mmap, os; from accdp_comm import steps\n"
        f"with open({str(path)!r}, 'r+b') as file: old = mmap.mmap(file.fileno(), 0)\n"
        f"before = os.stat({str(path)!r}).st_ino\n"
        f"steps.begin(0, 1); old[-1]; assert os.stat({str(path)!r}).st_ino != before"
    )
    subprocess.run([sys.executable, "-c", code], env=_environment(tmp_path), check=True, timeout=60)


def test_where_the_folder_is_not_there_nothing_is_made(tmp_path):
    """The tuner has one on its own host; ranks on others get the variable as well."""
    code = "from accdp_comm import Communicator, steps; [Communicator().barrier() for _ in range(2)]; steps.step()"
    folder = tmp_path / "of another host"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=_environment(folder), capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.count("\n") == 1 and f"ACCDP_STEP_LOG={folder}: no such folder on" in done.stderr
    assert not list(tmp_path.iterdir())


def test_files_that_are_just_being_made_are_left_alone(tmp_path):
    (tmp_path / "rank-0.events").write_bytes(b"")
    (tmp_path / "rank-1.events").write_bytes(bytes(steps.HEAD_BYTES + steps.CAPACITY * steps.EVENT_BYTES))
    assert events.read(tmp_path) == []


def test_a_ring_that_is_overwritten_while_it_is_read(tmp_path):
    """The count was read, then the rank wrote 5 more: they are where the oldest events were."""
    ring = np.zeros(steps.CAPACITY, events._EVENT)
    ring["time_ns"] = np.arange(steps.CAPACITY) + steps.CAPACITY
    ring["time_ns"][:5] = 10 * steps.CAPACITY + np.arange(5)
    head = (2 * steps.CAPACITY).to_bytes(8, "little").ljust(steps.DESCRIPTION_AT, b"\0")
    head += json.dumps({"rank": 0, "size": 1}).encode()
    (tmp_path / "rank-0.events").write_bytes(head.ljust(steps.HEAD_BYTES, b"\0") + ring.tobytes())
    (found,) = events.read(tmp_path)
    assert len(found.events) == steps.CAPACITY - 5
    assert (np.diff(found.events["time_ns"]) == 1).all()
