"""The text that other tools read: OMB's lines to the byte, nccl-tests' columns, and OMB's own output read back."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from accdp_comm.bench import bandwidth, omb, options, record, world
from accdp_comm.bench.operations import OPERATIONS, shares
from accdp_comm.bench.statistics import Times

HEADERS = {
    "bcast": b"\n# OSU MPI Broadcast Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n",
    "allreduce": b"\n# OSU MPI Allreduce Latency Test v7.5\n# Datatype: MPI_INT.\n# Size       Avg Latency(us)\n",
    "reduce": b"\n# OSU MPI Reduce Latency Test v7.5\n# Datatype: MPI_INT.\n# Size       Avg Latency(us)\n",
    "allgather": b"\n# OSU MPI Allgather Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n",
    "reduce_scatter": (
        b"\n# OSU MPI Reduce_scatter Latency Test v7.5\n# Datatype: MPI_INT.\n# Size       Avg Latency(us)\n"
    ),
    "alltoall": (
        b"\n# OSU MPI All-to-All Personalized Exchange Latency Test v7.5\n# Datatype: MPI_CHAR.\n"
        b"# Size       Avg Latency(us)\n"
    ),
    "gather": b"\n# OSU MPI Gather Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n",
    "scatter": b"\n# OSU MPI Scatter Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n",
    "barrier": b"\n# OSU MPI Barrier Latency Test v7.5\n# Avg Latency(us)\n",
    "latency": b"\n# OSU MPI Latency Test v7.5\n# Datatype: MPI_CHAR.\n# Size       Avg Latency(us)\n",
    "bw": b"\n# OSU MPI Bandwidth Test v7.5\n# Datatype: MPI_CHAR.\n# Size      Bandwidth (MB/s)\n",
    "bibw": b"\n# OSU MPI Bi-Directional Bandwidth Test v7.5\n# Datatype: MPI_CHAR.\n# Size      Bandwidth (MB/s)\n",
}
FULL = b"# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
VALUES = {"first": 1234.567, "min": 1.0, "max": 2345.678, "iterations": 1000, "errors": 0, "tail": [1.5, 22.25, 333.0]}
# Written by hand in the format of the binaries, as versions 5, 7.3 and 7.5 print.
RECORDED = """
# OSU MPI Allreduce Latency Test v7.5
# Datatype: MPI_INT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       2.05              1.94              2.16        1000
8388608             10240.50          10011.25          10469.75         100

# OSU MPI-CUDA Bandwidth Test v7.3
# Size      Bandwidth (MB/s)
# Datatype: MPI_CHAR.
1                       3.95
4194304             26903.29
# OSU MPI Latency Test v5.6.2
# Size          Latency (us)
0                       0.25
1024                    1.75
[node1:4242] a launcher's words
# OSU MPI Barrier Latency Test v7.4
# Avg Latency(us)
             1.41
# OSU MPI Broadcast Latency Test v7.5
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)        Validation  P50 Tail Lat(us)  P99 Tail Lat(us)
1                       0.50              Pass              0.45              2.50
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)        Validation  P50 Tail Lat(us)  P99 Tail Lat(us)
4                       0.75              Fail              0.70              3.50
"""


def test_every_operation_has_its_header():
    assert HEADERS.keys() == OPERATIONS.keys()


@pytest.mark.parametrize("name", OPERATIONS)
def test_header_bytes(name):
    row = OPERATIONS[name]
    text = omb.preamble(row) + omb.header(row, row.datatype.upper(), omb.Columns())
    assert text.encode() == HEADERS[name]


def test_header_of_a_gpu():
    assert omb.preamble(OPERATIONS["bcast"], "cuda") == "\n# OSU MPI-CUDA Broadcast Latency Test v7.5\n"


def test_all_columns_to_the_byte():
    columns = omb.Columns(full=True, validation=True, percentiles=(5, 50, 99))
    lines = omb.header(OPERATIONS["bcast"], "MPI_CHAR", columns).encode().splitlines()
    assert lines[1] == (FULL + b"        Validation   P5 Tail Lat(us)  P50 Tail Lat(us)  P99 Tail Lat(us)")
    assert omb.row(OPERATIONS["bcast"], columns, 1048576, VALUES).encode() == (
        b"1048576              1234.57              1.00           2345.68        1000"
        b"              Pass              1.50             22.25            333.00\n"
    )
    failed = omb.row(OPERATIONS["bcast"], columns, 1, VALUES | {"errors": 3})
    assert failed.split()[5] == "Fail"
    assert omb.header(OPERATIONS["bw"], "MPI_CHAR", omb.Columns(percentiles=(99,))).endswith(" P99 Tail BW(MB/s)\n")
    assert omb.row(OPERATIONS["barrier"], omb.Columns(), 0, VALUES | {"tail": []}) == "          1234.57\n"


def test_what_the_binaries_print_is_read():
    blocks = omb.parse(RECORDED)
    assert [(b.operation, b.version, b.device, b.datatype) for b in blocks] == [
        ("allreduce", "7.5", "cpu", "MPI_INT"),
        ("bw", "7.3", "cuda", "MPI_CHAR"),
        ("latency", "5.6.2", "cpu", ""),
        ("barrier", "7.4", "cpu", ""),
        ("bcast", "7.5", "cpu", "MPI_CHAR"),
        ("bcast", "7.5", "cpu", "MPI_FLOAT"),
    ]
    assert blocks[0].rows[1] == {
        "Size": 8388608,
        "Avg Latency(us)": 10240.5,
        "Min Latency(us)": 10011.25,
        "Max Latency(us)": 10469.75,
        "Iterations": 100,
    }
    assert [row["Bandwidth (MB/s)"] for row in blocks[1].rows] == [3.95, 26903.29]
    assert blocks[2].rows[0] == {"Size": 0, "Latency (us)": 0.25}
    assert blocks[3].rows == [{"Avg Latency(us)": 1.41}]
    assert blocks[4].rows[0]["P99 Tail Lat(us)"] == 2.5 and blocks[5].rows[0]["Validation"] == "Fail"


def test_lines_that_are_no_rows_are_left_out():
    """As what a rank says in between, and rows that a disk had no room for."""
    text = RECORDED + "4\n2026-11-30 12:00:00 a warning of somebody else\n"
    assert [block.rows for block in omb.parse(text)] == [block.rows for block in omb.parse(RECORDED)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_our_output_is_read_back(name):
    row, columns = OPERATIONS[name], omb.Columns(percentiles=(50, 90, 99))
    text = omb.preamble(row) + omb.header(row, row.datatype.upper(), columns) + omb.row(row, columns, 4096, VALUES)
    (block,) = omb.parse(text)
    assert block.operation == name and len(block.rows) == 1
    assert list(block.rows[0].values())[-4:] == [1234.57, 1.5, 22.25, 333.0]


def test_busbw_columns():
    row = {
        "bytes": 1 << 20,
        "ranks": 4,
        "itemsize": 4,
        "datatype": "mpi_float",
        "root": 0,
        "median_us": 72.983,
        "errors": 0,
        "is_in_place": False,
        "bus_n": 4,
        "bus_n_counts": "ranks",
    }
    row["algbw_gbps"], row["busbw_gbps"] = bandwidth.gbps(OPERATIONS["allreduce"], 1 << 20, 4, 72.983e-6, 4)
    lines = list(bandwidth.table(OPERATIONS["allreduce"], [row]))
    assert lines[0] == "# busbw: n = 4 counts ranks"
    assert re.sub(" +", " ", lines[2]) == (
        "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    )
    assert lines[4].split()[:9] == ["1048576", "262144", "float", "sum", "-1", "72.98", "14.37", "21.55", "0"]
    assert lines[5:] == ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {row['busbw_gbps']:g}"]
    in_place = list(bandwidth.table(OPERATIONS["allreduce"], [row | {"is_in_place": True, "errors": 2}]))
    assert in_place[4].split()[5:9] == ["N/A"] * 4 and in_place[4].split()[9] == "72.98"
    assert in_place[5] == "# Out of bounds values : 2 FAILED"


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("allgather", 4000), ("reduce_scatter", 16000), ("alltoall", 4000), ("scatter", 4000), ("gather", 4000)],
)
def test_count_is_what_a_call_of_nccl_is_given(name, nbytes):
    """nccl-tests prints the size of the larger buffer, and the count of one rank's part of it."""
    given = {"bytes": nbytes, "ranks": 4, "itemsize": 4, "root": 0}
    given |= {"datatype": "mpi_float", "median_us": 1.0, "errors": None, "is_in_place": False, "bus_n": 4}
    given |= {"bus_n_counts": "ranks", "algbw_gbps": 1.0, "busbw_gbps": 1.0}
    assert list(bandwidth.table(OPERATIONS[name], [given]))[4].split()[:2] == ["16000", "1000"]


@pytest.mark.parametrize(
    ("name", "ranks", "factor", "total"),
    [
        ("allreduce", 4, 1.5, 1000),
        ("bcast", 4, 1.0, 1000),
        ("reduce", 4, 1.0, 1000),
        ("allgather", 4, 0.75, 4000),
        ("alltoall", 4, 0.75, 4000),
        ("reduce_scatter", 4, 0.75, 1000),
        ("allreduce", 1, 0.0, 1000),
    ],
)
def test_bus_factors(name, ranks, factor, total):
    algbw, busbw = bandwidth.gbps(OPERATIONS[name], 1000, ranks, 1e-6, ranks)
    assert (algbw, busbw) == pytest.approx((total / 1e3, factor * total / 1e3))


def test_statistics():
    times = Times(np.array([[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 6.0]]) * 1e-6)
    assert times.averages_us == pytest.approx((2.75, 2.5, 3.0))
    assert times.slowest_us.tolist() == pytest.approx([3.0, 2.0, 3.0, 6.0])
    assert (times.tail_us(50), times.tail_us(99)) == pytest.approx((2.0, 5.0))
    pair = Times(np.array([[1e-6, 3e-6]]))
    assert pair.bandwidth_mbps(1000) == pytest.approx(500.0) and pair.tail_mbps(1000, 99) == pytest.approx(1000.0)


def test_shares_are_ombs():
    assert shares(10, 4) == [3, 3, 2, 2] and shares(1, 3) == [1, 0, 0] and sum(shares(1000, 7)) == 1000


def test_json_and_csv_files_grow(tmp_path):
    rows = [{"op": "bcast", "bytes": 4, "machine": {"cores": 2}}, {"op": "bcast", "bytes": 8, "machine": {"cores": 2}}]
    for row in rows:
        record.append_json(str(tmp_path / "x.jsonl"), [row])
        record.append_csv(str(tmp_path / "x.csv"), [row])
    assert [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()] == rows
    with open(tmp_path / "x.csv", newline="") as file:
        assert [row["bytes"] for row in csv.DictReader(file)] == ["4", "8"]


def test_rows_of_other_operations_keep_their_columns(tmp_path):
    path = tmp_path / "x.csv"
    for row in ({"op": "bw", "mbps": 7}, {"op": "bcast", "bytes": 4}, {"op": "bw", "bytes": 8, "mbps": 9}):
        record.append_csv(str(path), [row])
    with path.open(newline="") as file:
        assert [tuple(row.values()) for row in csv.DictReader(file)] == [
            ("bw", "7", ""),
            ("bcast", "", "4"),
            ("bw", "9", "8"),
        ]
    assert [found.name for found in tmp_path.iterdir()] == ["x.csv"]


def test_a_link_goes_on_leading_to_its_file(tmp_path):
    link, path = tmp_path / "link", tmp_path / "x"
    link.symlink_to(path)
    for row in ({"op": "bcast", "bytes": 4}, {"op": "bw", "mbps": 9}):
        record.append_csv(str(link), [row])
    assert link.is_symlink() and path.read_text().splitlines() == ["op,bytes,mbps", "bcast,4,", "bw,,9"]
    record.replace_json(link, [{"op": "bw"}])
    assert link.is_symlink() and json.loads(path.read_text()) == {"op": "bw"}


def test_rows_go_where_output_goes(tmp_path):
    """Which is not replaced: what is printed later would be lost."""
    path = tmp_path / "out"
    path.write_text("said before\n")
    code = "from accdp_comm.bench import record; record.append_csv('/dev/stdout', [{'op': 'bw'}]); print('said after')"
    with path.open("a") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=60)
    assert path.read_text().splitlines() == ["said before", "op", "bw", "said after"]
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert piped.stdout.splitlines() == ["op", "bw", "said after"]


def test_a_torn_row_stays_one(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("op,bytes\nbw,8,of another\nbw,1")
    record.append_csv(str(path), [{"op": "bcast", "bytes": 4}])
    assert path.read_text().splitlines()[-2:] == ["bw,1", "bcast,4"]
    record.append_csv(str(path), [{"op": "bcast", "us": 7}])  # written anew
    with path.open(newline="") as file:
        assert [tuple(row.values()) for row in csv.DictReader(file)] == [
            ("bw", "8", ""),
            ("bw", "1", ""),
            ("bcast", "4", ""),
            ("bcast", "", "7"),
        ]


def test_a_torn_line_stays_one(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"op": "bc')
    record.append_json(str(path), [{"op": "bw"}])
    assert path.read_text().splitlines() == ['{"op": "bc', '{"op": "bw"}']


def parse(*words: str):
    return options.parse(words, "bench", None)


def test_sizes_double_and_fit_the_datatype():
    args = parse("allreduce", "-m", "4:64")
    assert options.sizes(args, OPERATIONS["allreduce"], 4) == [4, 8, 16, 32, 64]
    assert options.sizes(parse("bcast", "-m", "100"), OPERATIONS["bcast"], 1) == [1, 2, 4, 8, 16, 32, 64]
    assert options.sizes(parse("bcast", "-m", "512k:"), OPERATIONS["bcast"], 4) == [1 << 19, 1 << 20]
    assert options.sizes(parse("bcast", "-m", "6:50"), OPERATIONS["bcast"], 4) == [4, 12, 24, 48]
    assert options.sizes(parse("barrier"), OPERATIONS["barrier"], 1) == [0]


def test_ombs_options():
    args = parse("bcast", "-f", "-c", "-z", "-d", "cpu", "-k", "rotate", "-T", "all", "-G", "tty,png", "-M", "1G")
    assert (args.percentiles, args.root, args.types) == ((50, 90, 99), None, ["mpi_char", "mpi_int", "mpi_float"])
    assert (args.graphs, args.limit_bytes, args.full, args.validate) == (["tty", "png"], 1 << 30, True, True)
    assert parse("allreduce", "-T", "half,bfloat16").types == ["half", "bfloat16"]
    assert parse("bcast", "-z95,50").percentiles == (50, 95)
    assert options.counts(parse("bcast"), OPERATIONS["bcast"], 8192) == (1000, 200)
    assert options.counts(parse("bcast", "-x", "0"), OPERATIONS["bcast"], 8193) == (100, 0)
    assert options.counts(parse("bcast", "--at-least", "5000"), OPERATIONS["bcast"], 4) == (5000, 200)
    assert options.counts(parse("bcast", "-i", "5"), OPERATIONS["bcast"], 4) == (5, 200)
    assert parse("bcast", "--codec", "auto").types == ["mpi_float"]
    assert parse("bcast", "--codec", "auto", "--error-bound", "relative:0.01").error_bound == (0.01, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bogus"], "invalid choice: 'bogus'"),
        (["bcast", "-m", "4q"], "expected bytes, with k, M, G or KiB, MiB, GiB if wanted, got '4q'"),
        (["bcast", "-m", "8:4"], "expected MIN <= MAX, got 8:4"),
        (["bcast", "-m", ":"], "expected [MIN:]MAX, MIN: or :MAX"),
        (["bcast", "-i", "0"], "expected a whole number >= 1, got '0'"),
        (["bcast", "-d", "rocm"], "invalid choice: 'rocm'"),
        (
            ["bcast", "-T", "mpi_byte"],
            "expected some of mpi_char, mpi_int, mpi_float, mpi_double, half, bfloat16, got 'mpi_byte'",
        ),
        (["bcast", "-z0"], "expected percentiles from 1 to 99"),
        (["bcast", "-G", "gif"], "expected some of tty, png, pdf"),
        (["bcast", "-k", "any"], "expected fixed:RANK or rotate"),
        (["bcast", "-D", "vect"], "unrecognized arguments: -D vect"),
        (["bcast", "-l"], "only allreduce can be in place"),
        (["bcast", "--backend", "accdp,foo"], "got 'foo'"),
        (["bcast", "--codec", "auto", "--backend", "mpi"], "expected a backend of accdp"),
        (["bcast", "--error-bound", "0.1"], "expected --codec too"),
        (["bcast", "--codec", "qpk", "--error-bound", "-1"], "expected a number > 0 or relative:NUMBER"),
        (["bcast", "--busbw", "gpus"], "expected -d cuda"),
        (["allreduce", "--codec", "auto"], "only bcast is compressed"),
        (["bw", "-f"], "osu_bw has no full format"),
        (["bw", "--burst", "2"], "osu_bw has no barriers"),
        (["bcast", "--burst", "9" * 17], "argument --burst: expected a number from 1 to 1000000"),
        (["bw", "-W", "9" * 17], "argument -W: expected a number from 1 to 1000000"),
        (["bw", "--async"], "osu_bw has no collective"),
        (["bcast", "--async", "--backend", "accdp-torch,mpi"], "mpi has no async_op"),
        (["bcast", "--async", "--backend", "accdp-torch", "--codec", "auto"], "measured synchronously"),
        (["bw", "--busbw"], "osu_bw has no bus bandwidth"),
        (["barrier", "-m", "4"], "a barrier has no size"),
        (["allreduce", "-k", "fixed:1"], "osu_allreduce has no root"),
        (["allreduce", "-W", "3"], "osu_allreduce has no window"),
        (["bcast", "-i", "20", "--at-least", "30"], "--at-least: expected at most the 20 of -i, got 30"),
        (["barrier", "-c"], "a barrier has no result to check"),
        ([], "required: OP"),
    ],
)
def test_mistakes_are_one_line(words, said, capsys, monkeypatch):
    for name in (*world._RANKS, *world._SIZES):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit) as leaving:
        parse(*words)
    text = capsys.readouterr().err
    assert leaving.value.code == 2 and text.count("\n") == 1 and said in text
    monkeypatch.setenv("PMI_RANK", "1")  # somebody left it there
    with pytest.raises(SystemExit) as leaving:
        parse(*words)
    assert leaving.value.code == 2 and capsys.readouterr().err == text
    monkeypatch.setenv("PMI_SIZE", "2")  # under a launcher, one rank says it
    with pytest.raises(SystemExit) as leaving:
        parse(*words)
    assert leaving.value.code == 0 and capsys.readouterr().err == ""


def test_rows_stay_until_others_are_written(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    record.replace_json(path, [{"op": "bcast"}])

    def interrupted():
        yield {"op": "allreduce"}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record.replace_json(path, interrupted())
    assert path.read_text() == '{"op": "bcast"}\n'
    record.replace_json(path, [{"op": "reduce"}])
    assert path.read_text() == '{"op": "reduce"}\n' and len(list(path.parent.iterdir())) == 1


def test_bytes_of_an_iteration():
    moved = {name: row.window_bytes(100, 3) for name, row in OPERATIONS.items() if row.kind == "bandwidth"}
    assert moved == {"bw": 300, "bibw": 600}
