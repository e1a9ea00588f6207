"""report.py, compare.py and train.py: what they make of rows, and one small run of each."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
from pathlib import Path

import jobs
import numpy as np
import pytest

from accdp_comm.bench.statistics import QUANTILES, Times

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

pytest.importorskip("matplotlib")
import compare  # noqa: E402  (found only after the lines above)
import figures  # noqa: E402
import hosts_page  # noqa: E402
import jobs_of_bench  # noqa: E402
import osu_binaries  # noqa: E402
import report  # noqa: E402
import report_page  # noqa: E402
import starts  # noqa: E402


def row(op: str = "bcast", backend: str = "accdp", nbytes: int = 1024, us: float = 100.0, **more) -> dict:
    made = {"op": op, "backend": backend, "bytes": nbytes, "ranks": 2, "nodes": 1, "datatype": "mpi_float"}
    made |= {"device": "cpu", "median_us": us, "p10_us": 0.9 * us, "p90_us": 1.2 * us, "part": "grid"}
    return made | {"machine": {"cores": 2, "processor": "p", "gpus": []}, "versions": {"commit": "c"}} | more


def files(tmp_path: Path, old: list[dict], new: list[dict]) -> tuple[Path, Path]:
    paths = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    for path, rows in zip(paths, (old, new), strict=True):
        path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    return paths


@pytest.mark.parametrize(
    ("us", "code", "said"),
    [
        (100.0, 0, "1 within the spread"),
        (119.0, 0, "1 within the spread"),
        (126.0, 1, "slower   bcast accdp 1 KiB, 2 ranks, mpi_float: 100.00 -> 126.00 us (1.26)"),
        (80.0, 0, "faster   bcast accdp 1 KiB"),
    ],
)
def test_only_what_is_slower_than_the_spread_fails(tmp_path, capsys, us, code, said):
    assert compare.compare_files(*files(tmp_path, [row()], [row(us=us)])) == code
    assert said in capsys.readouterr().out


def test_nothing_in_common_is_no_success(tmp_path, capsys):
    for old in ([], [row(op="gather")]):
        assert compare.compare_files(*files(tmp_path, old, [row()])) == 1
        assert "nothing to compare" in capsys.readouterr().out


def test_missing_rows_fail_and_new_ones_do_not(tmp_path, capsys):
    old, new = [row(), row(nbytes=4)], [row(), row(op="gather")]
    assert compare.compare_files(*files(tmp_path, old, new)) == 1
    out = capsys.readouterr().out
    assert "missing  bcast accdp 4 B" in out and "1 missing, 1 new" in out


@pytest.mark.parametrize(
    ("op", "peer", "nbytes", "ranks", "wanted"),
    [
        ("gather", "gloo", 64, 2, 2.0),
        ("bcast", "gloo", 1024, 2, 15.0),
        ("bcast", "gloo", 4096, 2, None),
        ("allreduce", "gloo", 1 << 20, 2, 4.0),
        ("allreduce", "gloo", 64, 1024, 4.0),  # more ranks than cores
        ("allreduce", "mpich", 16 << 20, 2, 1.8),
        ("allreduce", "openmpi", 64, 2, 0.9),
        ("bcast", "mpich", 16 << 20, 2, 0.9),
        ("gather", "mpich", 64, 2, None),
    ],
)
def test_marks_that_are_missed_are_counted(monkeypatch, op, peer, nbytes, ranks, wanted):
    """The best peer counts; just reached is reached."""
    monkeypatch.setattr(compare.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert compare.mark(op, ranks, nbytes, peer) == wanted
    backend = "accdp-torch" if peer == "gloo" else "accdp"
    for factor, reached in ((1.0, 1), (0.99, 0)):
        ours = row(op, backend, nbytes, us=1.0, ranks=ranks)
        lines = compare.table([ours, row(op, peer, nbytes, us=factor * (wanted or 1), ranks=ranks)])
        assert len(lines) == 3
        if wanted is None:
            assert lines[-1] == "0 of 0 marks reached"
            continue
        assert lines[-1] == f"{reached} of 1 marks reached" and lines[1].endswith(
            f"{wanted:g} {'yes' if reached else 'NO'}"
        )


def test_all_marks_are_in_the_sum():
    rows = [row("gather", "accdp-torch", nbytes, us=10.0) for nbytes in (4, 64, 1024)]
    rows += [row("gather", "gloo", nbytes, us=us) for nbytes, us in ((4, 21.0), (64, 19.0), (1024, 40.0))]
    lines = compare.table(rows)
    assert [line.split()[-1] for line in lines[1:-1]] == ["yes", "NO", "yes"]
    assert lines[-1] == "2 of 3 marks reached"


def compare_command(*words: str) -> jobs.Result:
    return jobs.run([sys.executable, str(BENCH / "compare.py"), *words])


def test_the_command_fails_on_missing_rows_and_on_files_it_cannot_read(tmp_path):
    old, new = files(tmp_path, [row(), row(nbytes=4)], [row()])
    missing = compare_command(str(old), str(new))
    assert missing.returncode == 1 and "missing  bcast accdp 4 B" in missing.stdout, str(missing)
    assert compare_command(str(new), str(old)).returncode == 0, "a new row is no regression"
    new.write_text(new.read_text() + '{"op": "bca')
    cut = compare_command(str(old), str(new))
    assert cut.returncode == 2 and f"{new}, line 2: not JSON" in cut.stderr, str(cut)
    other = tmp_path / "other.jsonl"
    other.write_text('{"op": "bcast"}\n')
    foreign = compare_command(str(other), str(other))
    assert foreign.returncode == 2 and "other.jsonl, line 1: expected a row of `accdp bench`" in foreign.stderr
    none = compare_command(str(old), str(tmp_path / "none"))
    assert none.returncode == 2 and "No such file" in none.stderr and none.stderr.count("\n") == 1, str(none)


def test_the_page_names_every_commit_that_rows_come_from():
    old, new = {"commit": "old"}, {"commit": "new-dirty"}
    assert report_page.commits([row(), row()]) == "c"
    assert report_page.commits([row(versions={})]) == "of an unknown commit"
    parts = [row(versions=old), row(versions=new, part="codecs"), row(versions={"osu": "7.5"})]
    assert report_page.commits(parts) == "at several commits: grid old; codecs new-dirty"
    pieces = [row(versions=old), row(versions=old), row("reduce", versions=new), row("reduce", ranks=4, versions=new)]
    assert report_page.commits(pieces) == (
        "at several commits: grid old (bcast on 2 ranks); grid new-dirty (reduce on 2 ranks, reduce on 4 ranks)"
    )


def start(us: float, **more) -> dict:
    """The row of a start whose iterations lie within 1 % of a time."""
    quantiles = np.linspace(0.99 * us, 1.01 * us, QUANTILES).tolist()
    return row(us=us, quantiles_us=quantiles, starts=1, errors=None, iterations=10, **more)


def test_the_spread_of_a_merged_row_holds_the_variation_between_starts():
    """Two modes, one per start: the one that fewer starts are in is within the spread, the other one is the median."""
    times = (2.0, 1.0, 2.0, 2.0, 1.0)
    rows = [start(us, avg_us=us, min_us=us, max_us=us, mbps=1 / us, algbw_gbps=1 / us) for us in times]
    rows[0]["errors"] = 0
    (merged,) = starts.merged(rows).values()
    assert merged["median_us"] == pytest.approx(2.0, rel=0.01)
    assert merged["p10_us"] == pytest.approx(1.0, rel=0.01) and merged["p90_us"] == pytest.approx(2.0, rel=0.01)
    assert (merged["starts"], merged["iterations"], merged["errors"]) == (5, 50, 0)
    assert merged["start_medians_us"] == list(times) and merged["avg_us"] == pytest.approx(1.6)
    assert (merged["min_us"], merged["max_us"]) == (1.0, 2.0) and merged["mbps"] == pytest.approx(1 / 1.6)
    assert merged["algbw_gbps"] == pytest.approx(1 / merged["median_us"])
    again = list(starts.merged([*starts.merged(rows[:3]).values(), *starts.merged(rows[3:]).values()]).values())
    assert again[0]["start_medians_us"] == list(times) and again[0]["starts"] == 5
    assert all(again[0][name] == pytest.approx(merged[name], rel=0.01) for name in ("median_us", "p10_us", "p90_us"))


def test_starts_count_alike_whatever_their_iterations():
    many, few = (Times(np.full((2, count), us / 1e6)).quantiles_us for us, count in ((1.0, 5000), (3.0, 2)))
    assert len(many) == len(few) == QUANTILES
    rows = [row(quantiles_us=quantiles, starts=1) for quantiles in (many, few, few)]
    (merged,) = starts.merged(rows).values()
    assert (merged["p10_us"], merged["median_us"], merged["p90_us"]) == (1.0, 3.0, 3.0)


def test_points_are_told_apart_and_rows_without_quantiles_are_not_merged():
    apart = [row(), row(ranks=4), row(backend="gloo"), row(datatype="mpi_int"), row(device="cuda"), row(window=1)]
    assert list(starts.merged(apart).values()) == apart
    with pytest.raises(jobs_of_bench.JobFailed, match="bcast accdp 1024 B, 2 ranks: 2 rows, expected one, or quanti"):
        starts.merged([start(1.0), row()])


def test_two_runs_agree_more_often_the_more_starts_they_are_from():
    """Where starts have two modes, and none of this is in the spread of one: what report.py --repeat counts."""
    chance = np.random.default_rng(0)

    def share(count: int) -> float:
        runs = [[start(us) for us in chance.choice([1.0, 2.0], count)] for _ in range(400)]
        rows = [
            next(iter(starts.merged(run).values()))
            if count > 1
            else run[0] | {"p10_us": run[0]["quantiles_us"][10], "p90_us": run[0]["quantiles_us"][90]}
            for run in runs
        ]
        pairs = [report.agree(one, other) for one, other in zip(rows[::2], rows[1::2], strict=True)]
        return sum(pairs) / len(pairs)

    assert share(1) < 0.7 and share(report.STARTS) >= 0.95


def test_each_peer_stands_beside_its_own_kind():
    rows = [row(us=10.0), row(backend="mpich", us=30.0), row(backend="openmpi", us=20.0)]
    rows += [row(backend="accdp-torch", us=10.0), row(backend="gloo", us=160.0)]
    lines = compare.table(rows)
    assert [line.split()[-3:] for line in lines[1:3]] == [["2.00", "0.9", "yes"], ["16.00", "15", "yes"]]
    assert "openmpi" in lines[1] and "gloo" in lines[2] and lines[-1] == "2 of 2 marks reached"


def test_calls_in_a_row_stand_beside_those_of_the_peer():
    rows = [row(us=10.0), row(us=2.0, burst=16), row(backend="mpich", us=5.0), row(backend="mpich", us=4.0, burst=16)]
    assert len(starts.merged(rows)) == 4
    alone, in_a_row = compare.table(rows)[1:3]
    assert alone.split()[-3:] == ["0.50", "0.9", "NO"] and alone.startswith("bcast  ")
    assert in_a_row.split()[-3:] == ["2.00", "0.9", "yes"] and in_a_row.startswith("bcast x16 ")


def test_families_of_mpi():
    assert jobs_of_bench.family_of(row(versions={"mpi": "MPICH Version: 5.0.2"})) == "mpich"
    assert jobs_of_bench.family_of(row(versions={"mpi": "Open MPI v5.0.11"})) == "openmpi"


def test_an_environment_named_from_here_is_found_by_jobs_that_run_elsewhere(tmp_path, monkeypatch):
    programs = [tmp_path / "env" / "bin" / name for name in ("mpiexec", "python")]
    programs[0].parent.mkdir(parents=True)
    for program in programs:
        program.touch()
    monkeypatch.chdir(tmp_path)
    other = jobs_of_bench.Mpi(Path("env"), "openmpi")
    assert [other.mpiexec, other.python] == [str(program) for program in programs]


def test_the_page_is_written_between_its_markers(tmp_path):
    page = tmp_path / "performance.md"
    begin, end = "<!-- begin: written by bench/report.py -->", "<!-- end: written by bench/report.py -->"
    page.write_text(f"# Performance\n\nby hand\n\n{begin}\nold\n{end}\n\nby hand too\n")
    rows = [row(us=10.0), row(backend="mpich", us=5.0), row(op="bcast", backend="gloo", us=70.0)]
    rows = [line | {"load_1min": 0.5, "harness_us": 0.25} for line in rows]
    rows.append(row(backend="osu", us=6.0))
    repeated = row(part="repeat", pairs=20, pairs_agree=19)
    report_page.write([*rows, repeated], page)
    text = page.read_text()
    assert text.startswith("# Performance\n\nby hand\n") and text.endswith("\n\nby hand too\n") and "old" not in text
    assert "| gloo / accdp-torch | OSU binary |" in text
    assert "| bcast | 1 KiB | 10.0 (9.0 to 12.0) | 5.0 (4.5 to 6.0) | 0.50 |  | 70.0 (63.0 to 84.0) |  | 6.0 |" in text
    assert "1 of 2 points" in text and "bcast 1 KiB on 2 ranks (mpich 2.0x)" in text
    said = " ".join(text.split())
    assert "19 of 20 pairs of runs (95%) differ by no more than the spread" in said and "costs 0.25 us" in said
    report_page.write([*rows, repeated], page)
    assert page.read_text() == text
    page.write_text(f"{begin}\n")
    with pytest.raises(jobs_of_bench.JobFailed, match="one of the markers"):
        report_page.write(rows, page)


def test_the_hosts_parts_of_the_page_come_from_the_rows(tmp_path):
    """The rows that are kept, twice into one page; of each method its line, of each mark whether it was reached."""
    page = tmp_path / "performance.md"
    results = BENCH / "results"
    bcast, sums = (
        [json.loads(line) for line in (results / f"{name}_hosts.jsonl").read_text().splitlines()]
        for name in ("bcast", "allreduce")
    )
    for _ in range(2):
        hosts_page.write_bcast(bcast, page)
        hosts_page.write_allreduce(sums, page)
    lines = page.read_text().splitlines()
    assert lines.count("## Broadcast between hosts") == lines.count("## Allreduce between hosts") == 1
    assert {line.split(" | ")[0] for line in lines} >= {
        f"| {row['method']}" for row in bcast if row["part"] == "figures"
    }
    marked = [line for line in lines if line.endswith(("| yes |", "| **no** |"))]
    reached = sum(line.endswith("| yes |") for line in marked)
    assert f"{reached} of {len(marked)} reached." in lines and len(marked) > 20
    of_sums = [line for line in lines if line.startswith(("| 2x2 |", "| 4x1 |"))]
    assert len(of_sums) == sum(row["part"] == "allreduce" for row in sums)


def test_figures_are_drawn(tmp_path):
    rows = [
        row(op, backend, nbytes, us=us * nbytes)
        for op in ("bcast", "allreduce")
        for backend, us in (("accdp", 1.0), ("mpich", 2.0), ("accdp-torch", 1.0), ("gloo", 5.0), ("osu", 3.0))
        for nbytes in (4, 4096, 1 << 20)
    ]
    rows += [row("bw", "accdp", 4096, window=64, us=9.0), row("barrier", "accdp", 0)]
    codecs = [row(backend=f"accdp+{name}", nbytes=1 << 24, ratio=1.5, error_bound=None, data_kind="x") for name in "ab"]
    sized = [line for line in rows if line["bytes"]]
    for name, draw, wanted in (
        ("latency.png", figures.latency, sized),
        ("bandwidth.png", figures.bandwidth, sized),
        ("ratios.png", figures.ratios, sized[:-1]),
        ("codecs.png", figures.codecs, codecs),
    ):
        draw(wanted, tmp_path / name)
        assert (tmp_path / name).stat().st_size > 8_000


def test_figures_of_nothing_are_none(tmp_path):
    figures.bandwidth([row(nbytes=4)], tmp_path / "none.png")
    figures.latency([row("barrier", "accdp", 0)], tmp_path / "barrier.png")
    assert [path.name for path in tmp_path.iterdir()] == ["barrier.png"]


# A stand-in for OMB's binary, in the format that it prints; only rank 0 speaks, as there.
_BINARY = """#!/bin/sh
[ "${PMI_RANK:-${OMPI_COMM_WORLD_RANK:-0}}" = 0 ] || exit 0
echo
echo "# OSU MPI Allreduce Latency Test v7.5"
echo "# Datatype: MPI_INT."
echo "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations"
echo "4                       2.05              1.94              2.16        1000"
echo "$2                  31.00             30.00             32.00        1000"
"""


def test_osu_binaries_are_run_and_read(tmp_path):
    binary = tmp_path / "libexec" / "collective" / "osu_allreduce"
    binary.parent.mkdir(parents=True)
    binary.write_text(_BINARY.replace("$2", "1024"))
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    rows = osu_binaries.run(jobs_of_bench.Mpi(), tmp_path, 2, ["allreduce", "bcast"], 1024)
    assert [(r["backend"], r["op"], r["bytes"], r["median_us"], r["min_us"], r["ranks"]) for r in rows] == [
        ("osu", "allreduce", 4, 2.05, 1.94, 2),
        ("osu", "allreduce", 1024, 31.0, 30.0, 2),
    ]
    binary.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    with pytest.raises(jobs_of_bench.JobFailed, match="broken"):
        osu_binaries.run(jobs_of_bench.Mpi(), tmp_path, 2, ["allreduce"], 1024)
    with pytest.raises(jobs_of_bench.JobFailed, match="no osu_bcast"):
        osu_binaries.find(tmp_path / "none")


def test_bandwidths_of_the_binaries():
    (made,) = osu_binaries.rows_of("# OSU MPI Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n1000  640.00\n", 2)
    assert made["mbps"] == 640.0 and made["median_us"] == pytest.approx(100.0)  # 64 messages of 1000 B


def test_several_starts_of_the_binaries_are_merged():
    text = "# OSU MPI Broadcast Latency Test v7.5\n# Size      Avg Latency(us)\n8         {}\n"
    rows = [row for us in (1.0, 2.0, 4.0) for row in osu_binaries.rows_of(text.format(us), 2)]
    (merged,) = starts.merged(rows).values()
    assert (merged["starts"], merged["median_us"], merged["backend"]) == (3, 2.0, "osu")
    assert 1.0 < merged["p10_us"] < 2.0 < merged["p90_us"] < 4.0


def test_report_runs_and_repeats(tmp_path):
    out, page = tmp_path / "rows.jsonl", tmp_path / "docs" / "performance.md"
    page.parent.mkdir()
    words = ["--sizes", "4,4k", "--seconds", "0.01", "--starts", "2", "--out", str(out), "--page", str(page)]
    command = [sys.executable, str(BENCH / "report.py"), "--ops", "allreduce", *words]
    result = jobs.run([*command, "--ranks", "2", "--only", "grid"], timeout=100.0)
    assert result.returncode == 0, str(result)
    rows = jobs_of_bench.read(out)
    assert {line["backend"] for line in rows} > {"accdp", "accdp-torch", "gloo"} and len(rows) == 8
    assert all(line["errors"] == 0 and line["starts"] == len(line["start_medians_us"]) == 2 for line in rows)
    assert "| allreduce | 4 KiB |" in page.read_text() and (page.parent / "bench_ratio.png").exists()
    assert "Each row is from 2 starts of the ranks" in " ".join(page.read_text().split())
    repeated = jobs.run([*command, "--repeat", "1"], timeout=100.0)
    assert repeated.returncode == 0, str(repeated)
    assert repeated.stdout.count(" of 1 pairs of runs within the spread (last run: ") == 2, str(repeated)
    rows = jobs_of_bench.read(out)
    assert sum(line["part"] == "grid" for line in rows) == 8, "the other parts' rows stay"
    assert [(line["bytes"], line["pairs"], line["starts"]) for line in rows[8:]] == [(4, 1, 2), (4096, 1, 2)]


def test_a_piece_of_the_grid_replaces_that_piece(tmp_path, monkeypatch):
    kept = [row(us=1.0), row(op="gather", us=2.0), row(nbytes=4, us=3.0), row(us=4.0, part="codecs")]
    for words, left in (["--ops", "bcast"], [2.0, 3.0, 4.0]), ([], [4.0]):
        out = tmp_path / "rows.jsonl"
        monkeypatch.setattr(sys, "argv", ["report.py", "--only", "grid", "--starts", "1", "--out", str(out), *words])
        monkeypatch.setattr(report, "measure_grid", lambda *_: [row(us=9.0)])
        rows = report._measure(report.arguments(), kept, print)
        assert [line["median_us"] for line in rows] == [*left, 9.0]


def test_peers_that_are_absent_are_named(tmp_path):
    family = jobs_of_bench.Mpi().family
    other = "openmpi" if family == "mpich" else "mpich"
    files = ["--json", str(tmp_path / "p.jsonl"), "--png", str(tmp_path / "p.png")]
    words = ["--peers", f"{family},{other}", "--quick", "--ops", "allreduce", "--sizes", "4,4k", "--seconds", "0.01"]
    # A copy of the scripts has no environment under its build/, and pip finds nothing to make one of.
    copy = tmp_path / "copy"
    for folder in ("bench", "tools", "requirements"):
        shutil.copytree(BENCH.parent / folder, copy / folder, ignore=shutil.ignore_patterns("results"))
    (copy / "accdp_comm").symlink_to(BENCH.parent / "accdp_comm")
    nothing = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    result = jobs.run([sys.executable, str(copy / "bench" / "compare.py"), *words, *files], timeout=90.0, env=nothing)
    assert result.returncode == 0, str(result)
    assert result.stdout.count(f"{other} is left out: accdp was built with {family}") == 1, str(result)
    assert "Could not find a version that satisfies the requirement" in result.stdout, str(result)
    assert {line["backend"] for line in jobs_of_bench.read(tmp_path / "p.jsonl")} == {"accdp", family}
    wrong = jobs.run([sys.executable, str(BENCH / "compare.py"), *words, f"--{other}-env", str(tmp_path)], timeout=60.0)
    assert wrong.returncode == 2 and "no such file; expected a virtual environment" in wrong.stderr, str(wrong)


def train(ranks: int, *words: str, env: dict[str, str] | None = None) -> jobs.Result:
    command = [*jobs.mpiexec_command(ranks), sys.executable, str(BENCH / "train.py"), *words]
    return jobs.run(command, timeout=60.0, env=env)


def test_training_is_the_same_with_any_backend(tmp_path):
    out = tmp_path / "t.jsonl"
    few = ("--steps", "12", "--warm-up", "2", "--target-loss", "2.2", "--json", str(out))
    for words in (("--backend", "accdp", "--codec", "auto", "--loader-workers", "1"), ("--backend", "gloo")):
        result = train(2, *few, *words)
        assert result.returncode == 0, str(result)
    accdp, gloo = jobs_of_bench.read(out)
    assert (accdp["backend"], accdp["codec"], accdp["loader_workers"], gloo["backend"]) == ("accdp", "auto", 1, "gloo")
    assert accdp["last_loss"] == pytest.approx(gloo["last_loss"], rel=1e-4)
    assert accdp["steps_to_loss"] == gloo["steps_to_loss"] and accdp["samples_per_s"] > 0
    assert (accdp["seconds_to_loss"] is None) == (accdp["steps_to_loss"] is None)
    assert {"machine", "versions", "settings", "command", "time", "load_1min"} <= accdp.keys()


@pytest.mark.parametrize(
    ("ranks", "words", "said"),
    [
        (2, ("--batch-size", "63"), "--batch-size 63 cannot be divided evenly among 2 ranks"),
        (1, ("--backend", "gloo", "--codec", "fpk"), "only the backend accdp compresses, not gloo"),
        (1, ("--ranks-per-gpu", "2"), "--ranks-per-gpu: expected --device cuda"),
        (2, ("--backend", "foo"), "--backend foo: this torch has none of that name"),
        (2, ("--codec", "nope"), "--codec: codec=nope: expected auto, none, "),
        (2, ("--json", "/nonexistent/x"), "--json /nonexistent/x: No such file or directory"),
    ],
)
def test_training_refuses_in_one_line(ranks, words, said):
    result = train(ranks, *words)
    assert result.returncode == 2 and said in result.stderr and len(result.stderr.splitlines()) == 1, str(result)
