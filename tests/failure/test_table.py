"""The failure table: one line per case, ranks that said the same together, nothing that changes from run to run."""

import table


def test_rows():
    said = "DistBackendError: rank {} of 3, group 0: rank 1 (pid 4711, host vm) exited during bcast #2"
    ranks = [
        {"rank": 0, "said": said.format(0), "after_s": 0.31, "status": 0},
        {"rank": 1, "said": "", "after_s": None, "status": -9},
        {"rank": 2, "said": said.format(2), "after_s": 0.52, "status": 0},
    ]
    late = [{"rank": 0, "said": "KeyboardInterrupt: ", "after_s": 0.01, "status": 0}]
    text = table.render([{"done": "rank 1 gets SIGKILL", "ranks": ranks}, {"done": "a | b_c", "ranks": late}])
    assert text.splitlines()[2:] == [
        "| rank 1 gets SIGKILL | ranks 0, 2, 0.31 to 0.52 s: DistBackendError: rank 1 (pid …, host …) exited during"
        " bcast #2<br>rank 1: killed |",
        "| a \\| b\\_c | rank 0, 0.01 s: KeyboardInterrupt |",
    ]
