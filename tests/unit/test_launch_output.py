"""Output of ranks: whole lines, labels, and which error is shown last."""

import contextlib
import os
import threading
import types

import pytest

from accdp_comm.launch import output
from accdp_comm.launch.output import ERR, OUT, Output, OutputClosed, Sink


class Screen:
    """Two pipes in place of our own output."""

    def __init__(self, ranks: int, *, labels: bool = True, is_terminal: bool = False):
        self._wakeup = os.pipe()
        self._ends = {kind: os.pipe() for kind in (OUT, ERR)}
        sinks = {kind: Sink(write, self._wakeup[0], lambda: None) for kind, (_, write) in self._ends.items()}
        both = dict.fromkeys((OUT, ERR), is_terminal)
        self.output = Output(ranks, sinks, dict.fromkeys((OUT, ERR), labels), both, False)

    def shown(self, kind: str = OUT) -> str:
        os.set_blocking(self._ends[kind][0], False)
        try:
            return os.read(self._ends[kind][0], 1 << 16).decode()
        except BlockingIOError:
            return ""

    def close_reader(self) -> None:
        os.close(self._ends[OUT][0])

    def close(self) -> None:
        for pipe in (self._wakeup, *self._ends.values()):
            for end in pipe:
                try:
                    os.close(end)
                except OSError:
                    continue  # a test closed it


@pytest.fixture
def screen():
    made = []

    def make(*arguments, **options) -> Screen:
        made.append(Screen(*arguments, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_lines_are_whole_and_carry_the_rank(screen):
    two = screen(12)
    two.output.feed(0, OUT, b"be")
    two.output.feed(11, OUT, b"other\nsecond\nun")
    two.output.feed(0, OUT, b"gin\n")
    assert two.shown() == "[11] other\n[11] second\n[ 0] begin\n"
    two.output.finish(11)
    assert two.shown() == "[11] un\n"


def test_without_labels_lines_are_as_they_were(screen):
    two = screen(2, labels=False)
    two.output.feed(1, OUT, b'{"a": 1}\n{"b"')
    two.output.feed(0, OUT, b"x\n")
    two.output.feed(1, OUT, b": 2}\n")
    assert two.shown() == '{"a": 1}\nx\n{"b": 2}\n'


def test_one_rank_alone_is_passed_on_byte_for_byte(screen):
    one = screen(1, labels=False)
    one.output.feed(0, OUT, b"name? ")
    assert one.shown() == "name? "
    one.output.finish(0)
    assert one.shown() == ""


@pytest.fixture
def clock(monkeypatch):
    """The output's: it stands still, and a test moves it."""
    now = [100.0]
    monkeypatch.setattr(output, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_terminal_shows_unfinished_lines_after_a_moment(screen, clock):
    two = screen(2, is_terminal=True)
    two.output.feed(0, OUT, b"10 %")
    wait = two.output.flush_stale()
    assert wait is not None and 0 < wait <= 0.1 and two.shown() == ""
    clock[0] += wait + 1e-9
    assert two.output.flush_stale() is None and two.shown() == "[0] 10 %"
    two.output.feed(0, OUT, b" done\n")
    assert two.shown() == " done\n"


def test_another_rank_begins_a_line_of_its_own(screen, clock):
    two = screen(2, is_terminal=True)
    two.output.feed(0, OUT, b"10 %")
    clock[0] += 0.11
    two.output.flush_stale()
    two.output.feed(1, OUT, b"hello\n")
    assert two.shown() == "[0] 10 %\n[1] hello\n"


TRACEBACK = b"Traceback (most recent call last):\n  File x\nValueError: 3\n"


def test_the_last_error_is_the_traceback(screen):
    two = screen(2)
    two.output.feed(1, ERR, b"warning\n" + TRACEBACK)
    said = two.output.last_error(1)
    assert [line.text for line in said] == TRACEBACK.splitlines()
    assert two.output.is_last(1, said)
    two.output.feed(0, ERR, b"me too\n")
    assert not two.output.is_last(1, said)


def test_a_traceback_with_torch_s_label_is_one(screen):
    two = screen(2)
    labelled = b"".join(b"[rank1]: " + line for line in TRACEBACK.splitlines(keepends=True))
    two.output.feed(1, ERR, b"[rank1]:[W1122 C++] a warning\n" + labelled)
    assert [line.text for line in two.output.last_error(1)] == TRACEBACK.splitlines()
    assert two.shown(ERR) == "[1] [rank1]:[W1122 C++] a warning\n" + "".join(
        f"[1] [rank1]: {line}\n" for line in TRACEBACK.decode().splitlines()
    )


def test_chained_tracebacks_stay_together_and_older_ones_apart(screen):
    one = screen(1)
    chain = TRACEBACK + b"\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK
    one.output.feed(0, ERR, TRACEBACK + b"that was caught\n" + chain)
    assert [line.text for line in one.output.last_error(0)] == chain.splitlines()


def test_a_group_of_exceptions_is_a_traceback(screen):
    one = screen(2)
    group = ["  + Exception Group Traceback (most recent call last):", "  | ExceptionGroup: eg (1 sub-exception)"]
    one.output.feed(0, ERR, "\n".join(["before", *group, ""]).encode())
    assert [line.text.decode() for line in one.output.last_error(0)] == group


def test_a_progress_bar_that_never_ends_its_line_takes_little(screen):
    one = screen(1)
    for number in range(20_000):
        one.output.feed(0, ERR, b"\r%5d |%s|" % (number, b"x" * 90))
        one.shown(ERR)
    one.output.finish(0)
    (line,) = one.output.last_error(0)
    assert line.text.endswith(b"\r19999 |%s|" % (b"x" * 90)) and len(line.text) == 1 << 16


def test_why_output_cannot_be_written_is_kept():
    with open("/dev/full", "w") as full:
        sinks = {kind: Sink(full.fileno(), None) for kind in (OUT, ERR)}
        no = dict.fromkeys((OUT, ERR), False)
        one = Output(1, sinks, no, no, False)
        one.feed(0, OUT, b"line\n")
    assert one.is_closed and one.trouble == "standard output cannot be written to: No space left on device"


def test_without_a_traceback_the_last_lines_are_shown(screen):
    one = screen(1)
    one.output.feed(0, ERR, b"".join(b"%d\n" % number for number in range(30)) + b"end")
    one.output.finish(0)
    assert [line.text for line in one.output.last_error(0)] == [b"%d" % number for number in range(11, 30)] + [b"end"]


def test_a_reader_that_left_is_noticed(screen):
    one = screen(1)
    one.close_reader()
    one.output.feed(0, OUT, b"x\n")
    assert one.output.is_closed


@pytest.fixture
def terminal():
    """A terminal's two ends, the one that shows first. It says that it has room where a write would block."""
    ends = os.openpty()
    yield ends
    for end in ends:
        os.close(end)


def test_a_terminal_that_is_not_read_holds_nothing_up(terminal):
    with contextlib.closing(Sink(terminal[1], None, patience_s=0.5)) as sink, pytest.raises(OutputClosed):
        sink.write(b"line\n" * 100_000)
    assert os.get_blocking(terminal[1]), "others write there too"


def test_a_slow_terminal_gets_all(terminal):
    shown = bytearray()

    def read():
        while len(shown) < 6 * 20_000:  # a line's end becomes two bytes
            shown.extend(os.read(terminal[0], 1000))

    reader = threading.Thread(target=read)
    reader.start()
    with contextlib.closing(Sink(terminal[1], None)) as sink:
        sink.write(b"line\n" * 20_000)
    reader.join()
    assert shown == b"line\r\n" * 20_000


def test_what_is_said_last_waits_for_nobody():
    """Nor does it fail: a job has its exit code by then."""
    read_end, write_end = os.pipe()
    try:
        output.say_last("x" * (1 << 20), write_end)
        assert os.read(read_end, 10) == b"x" * 10
        os.close(read_end)
        output.say_last("y", write_end)
    finally:
        os.close(write_end)
