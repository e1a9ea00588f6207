"""How it is known that an exception which nobody caught ends a process: by scripts that end in many ways."""

import subprocess
import sys

import pytest

WATCHING = """
import atexit, sys
from accdp_comm import uncaught
atexit.register(lambda: print("ended by", repr(uncaught.last())))
{before}
uncaught.watch()
uncaught.watch()
{after}
"""
CAUGHT = """
try:
    1 / 0
except ArithmeticError as error:
    sys.last_value = error"""
CONSOLE = """
import code, threading
typed = iter(["1 / 0"])
def read(prompt):
    for line in typed:
        return line
    raise EOFError
"""
ENDS = {
    "at the end": ("", "", "None"),
    "by an exception": ("", "raise ValueError(7)", "ValueError(7)"),
    "by an exception, reported by a hook from before": (
        "sys.excepthook = lambda kind, error, traceback: print('reported', error)",
        "raise ValueError(7)",
        "ValueError(7)",
    ),
    "by an exception, reported by a hook from after": (
        "",
        "sys.excepthook = lambda kind, error, traceback: print('reported', error)\nraise ValueError(7)",
        "ValueError(7)",
    ),
    "after an error of a test, with a hook from after": (
        "",
        "sys.excepthook = lambda *all: None\nimport helper",
        "None",
    ),
    "by an exception, with a hook that calls ours": (
        "",
        "ours = sys.excepthook\nsys.excepthook = lambda *all: ours(*all)\nraise ValueError(7)",
        "ValueError(7)",
    ),
    "by Ctrl-C": ("", "raise KeyboardInterrupt", "KeyboardInterrupt()"),
    "by sys.exit": ("", "sys.exit(3)", "None"),
    "after an error of a test": ("", CAUGHT, "None"),
    "after an error of a test from before": (CAUGHT, "", "None"),
    "after an error that was caught and reported": (
        "",
        "try:\n    1 / 0\nexcept ArithmeticError as error:\n    sys.excepthook(type(error), error, None)",
        "None",
    ),
    "by another exception than a test's": (CAUGHT, "raise ValueError(7)", "ValueError(7)"),
    "after a prompt of its own": ("", "sys.ps1 = '>>> '\nraise ValueError(7)", "ValueError(7)"),
    "after an error at a console of its own": ("", f"{CONSOLE}code.interact('', read)", "None"),
    "after an error at a console in a thread": (
        "",
        f"{CONSOLE}thread = threading.Thread(target=code.interact, args=('', read))\nthread.start()\nthread.join()",
        "None",
    ),
    "in a thread": (
        "",
        "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
        "None",
    ),
}


@pytest.mark.parametrize("how", ENDS)
def test_how_a_process_ends_is_known(how, tmp_path):
    before, after, expected = ENDS[how]
    script = tmp_path / "script.py"
    (tmp_path / "helper.py").write_text(f"import sys\n{CAUGHT}")
    script.write_text(WATCHING.format(before=before, after=after))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert f"ended by {expected}" in ended.stdout, ended.stderr
    assert "reported" not in after + before or "reported 7" in ended.stdout


@pytest.mark.parametrize("prompt", ["-i", "asyncio"])
def test_an_error_at_the_prompt_is_not_an_end(prompt):
    if prompt == "-i":
        command, typed = ["-i", "-c", WATCHING.format(before="", after="raise ValueError(7)")], ""
    else:
        command, typed = ["-m", "asyncio"], WATCHING.format(before="", after="1 / 0")
    typed += "print('goes on')\n"
    ended = subprocess.run([sys.executable, *command], input=typed, capture_output=True, text=True, timeout=60)
    assert "goes on" in ended.stdout and "ended by None" in ended.stdout, ended.stderr
