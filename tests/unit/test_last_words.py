"""A rank that ends the job waits until its error has been read, but not for ever."""

import io
import os
import sys
import threading
import time

import pytest

from accdp_comm import last_words


def test_until_the_pipe_is_read():
    read_end, write_end = os.pipe()
    os.write(write_end, b"ValueError: enough\n")
    assert not last_words.drain(write_end, time.monotonic())  # nobody has
    emptied = []
    waiting = threading.Thread(target=lambda: emptied.append(last_words.drain(write_end, time.monotonic() + 30)))
    waiting.start()
    assert not emptied and os.read(read_end, 5) == b"Value"
    assert not emptied and os.read(read_end, 99) == b"Error: enough\n"
    waiting.join(30)
    assert emptied == [True]
    os.close(read_end), os.close(write_end)


def test_what_is_no_pipe(tmp_path):
    with (tmp_path / "log").open("w") as file:
        file.write("something")
        file.flush()
        assert last_words.drain(file.fileno(), time.monotonic())


@pytest.mark.parametrize("stdout", [None, io.StringIO()], ids=["closed", "buffer"])
def test_errors_are_waited_for_whatever_became_of_standard_output(monkeypatch, stdout):
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as stderr:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setattr(sys, "stderr", stderr)
        stderr.write("ValueError: enough\n")
        waiting = threading.Thread(target=last_words.let_be_read)
        waiting.start()
        assert os.read(read_end, 99) == b"ValueError: enough\n"  # flushed, too
        waiting.join(30)
    os.close(read_end)
