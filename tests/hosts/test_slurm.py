"""One script under srun: ranks on one node and on two, tasks that no MPI joins, and ranks that end before the others.

srun's own default is to let the other ranks run when one dies, so they must come to an end by themselves.
"""

import os
import sys

import jobs
import pytest
import slurm
import testbed

LAUNCH_CHILD = str(jobs.TESTS / "launch_child.py")
FULL_HEAP_CHILD = str(testbed.HERE / "full_heap_child.py")
KILLED_CHILD = str(testbed.HERE / "killed_child.py")
LATE_CHILD = str(testbed.HERE / "late_child.py")
KEEP_GOING = str(jobs.TESTS / "launch" / "keep_going_rank.py")
SECONDS = 90.0
GROUP_TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Slurm on two hosts."""
    if reason := slurm.why_not():
        pytest.skip(reason)
    mpiexec = jobs.find_mpiexec()
    if jobs.is_open_mpi(mpiexec):
        pytest.skip(f"{mpiexec} is Open MPI's, which does not speak srun's pmi2")
    with testbed.Hosts(2, rate_mbit=1000) as hosts:
        yield slurm.Slurm(hosts, tmp_path_factory.mktemp("slurm"))


@pytest.mark.parametrize(
    ("options", "placed"),
    [
        (["-N1", "-n1"], ["node0"]),
        (["-N1", "-n2"], ["node0", "node0"]),
        (["-N1", "-n4"], ["node0"] * 4),
        (["-N2", "-n4", "--ntasks-per-node=2"], ["node0", "node0", "node1", "node1"]),
        (["-N2", "-n2"], ["node0", "node1"]),
    ],
    ids=["1 rank", "2 ranks", "4 ranks", "4 ranks on 2 nodes", "2 ranks on 2 nodes"],
)
def test_srun(cluster, options, placed):
    result = cluster.srun([*options, "--mpi=pmi2"], [sys.executable, LAUNCH_CHILD], SECONDS)
    assert result.returncode == 0, str(result)
    assert sorted(report["rank"] for report in result.reports) == list(range(len(placed))), str(result)
    assert all(report["hosts"] == placed for report in result.reports), str(result)


def test_requests_to_srun_that_are_as_long_as_they_get(cluster):
    """srun tears requests of more than 1024 bytes; malloc fills what it gives out, too."""
    command = ["env", "MALLOC_PERTURB_=70", sys.executable, FULL_HEAP_CHILD]
    result = cluster.srun(["-N2", "-n4", "--ntasks-per-node=2", "--mpi=pmi2"], command, SECONDS)
    assert sorted(report["rank"] for report in result.reports) == [0, 1, 2, 3], str(result)


def test_srun_without_mpi_is_refused_in_one_sentence(cluster):
    result = cluster.srun(["-N1", "-n2", "--mpi=none"], [sys.executable, LAUNCH_CHILD], SECONDS)
    assert result.returncode == 1, str(result)
    said = [line for line in result.stderr.splitlines() if line.startswith("accdp_comm.UsageError: ")]
    assert len(said) == 2, str(result)
    assert all("srun started 2 tasks without an MPI plug-in" in line and "--mpi=pmi2" in line for line in said), said


def test_one_task_without_mpi_is_a_world_of_one(cluster):
    result = cluster.srun(["-N1", "-n1", "--mpi=none"], [sys.executable, LAUNCH_CHILD], SECONDS)
    assert [(report["rank"], report["size"]) for report in result.reports] == [(0, 1)], str(result)


@pytest.mark.parametrize(
    ("options", "pause_s"),
    [(["-N1", "-n3"], 0), (["-N2", "-n4", "--ntasks-per-node=2"], 0), (["-N2", "-n2"], 0), (["-N2", "-n2"], 0.5)],
    ids=["1 node", "2 nodes", "alone on its node", "between calls"],
)
def test_ranks_end_when_one_is_killed(cluster, options, pause_s):
    """Slurm does not end them; the last rank is the victim."""
    command = [sys.executable, KILLED_CHILD, str(GROUP_TIMEOUT_S), str(pause_s)]
    result = cluster.srun([*options, "--mpi=pmi2"], command, SECONDS)
    victim = int(options[1][2:]) - 1
    reports = {report["rank"]: report for report in result.reports}
    assert result.returncode != 0 and sorted(reports) == list(range(victim)), str(result)
    for report in reports.values():
        assert report["seconds"] < GROUP_TIMEOUT_S, str(result)
        assert f"rank {victim} (pid" in report["said"][0], str(result)


@pytest.mark.parametrize("options", [["-N1", "-n4"], ["-N2", "-n4", "--ntasks-per-node=2"]], ids=["1 node", "2 nodes"])
def test_a_rank_that_leaves_long_after_the_others(cluster, options):
    """They do not wait for it in MPI_Finalize for ever, and it finds an end without them."""
    result = cluster.srun([*options, "--mpi=pmi2"], [sys.executable, LATE_CHILD], SECONDS)
    assert result.returncode == 0, str(result)
    assert sorted(report["rank"] for report in result.reports) == [0, 1, 2, 3], str(result)


def test_the_recipe_as_a_batch_job(cluster, monkeypatch):
    """examples/recipes/slurm.sbatch: 2 ranks on each of 2 nodes train as one job."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    recipes = jobs.TESTS.parent / "examples" / "recipes"
    result = cluster.sbatch(recipes / "slurm.sbatch", [str(recipes / "plain_ddp.py"), "--steps", "5"], SECONDS)
    assert result.returncode == 0, str(result)
    (line,) = result.reports
    assert (line["ranks"], line["backend"], line["weights_agree"]) == (4, "accdp", True), str(result)
    assert line["last_loss"] < line["first_loss"], str(result)


@pytest.mark.parametrize("places", ["", "node0:2\nnode1:2\n"], ids=["1 node", "2 nodes"])
def test_accdp_run_starts_ranks_by_srun(cluster, tmp_path, places):
    """Its guards call back from both nodes."""
    (tmp_path / "hosts").write_text(places)
    where = ["--hosts", str(tmp_path / "hosts")] if places else ["-n", "4"]
    command = [sys.executable, "-m", "accdp_comm", "run", "--launcher", "srun"]
    result = cluster.call([*command, *where, LAUNCH_CHILD], SECONDS)
    assert result.returncode == 0, str(result)
    placed = [row["hosts"] for row in result.reports]
    assert placed == [["node0", "node0", "node1", "node1"] if places else ["node0"] * 4] * 4, str(result)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["--ranks-per-gpu", "2"], [0, 0, 0, 0, 1, 1, 1, 1]),
        (["--ranks-per-gpu", "2", "-n", "5"], [0, 0, 0, 1, 1]),
    ],
    ids=["all GPUs", "fewer ranks"],
)
def test_ranks_per_gpu_are_counted_on_all_nodes_of_an_allocation(cluster, tmp_path, options, nodes):
    """More of them than the allocation has CPUs; each node lists the same two stand-ins for GPUs."""
    rows = "".join(f"{i}, GPU-{i}, Stand-in, 81920, 9.0, Disabled, 00000000:0{i}:00.0\n" for i in range(2))
    (tmp_path / "gpus.csv").write_text(rows)
    path = f"PATH={jobs.TESTS / 'launch' / 'stand_ins'}{os.pathsep}{os.environ['PATH']}"
    command = ["salloc", "-N2", "--ntasks-per-node=1", "env", path, f"STAND_IN_GPUS={tmp_path}"]
    command += [sys.executable, "-m", "accdp_comm", "run", "--mps", "off", *options]
    result = cluster.call([*command, "sh", "-c", "echo $RANK $(hostname) $CUDA_VISIBLE_DEVICES"], SECONDS)
    found = sorted(line.split() for line in result.stdout.splitlines())
    assert [row[:2] for row in found] == [[str(rank), f"node{node}"] for rank, node in enumerate(nodes)], str(result)
    per_gpu = [sum(row[1:] == [f"node{node}", f"GPU-{gpu}"] for row in found) for node in range(2) for gpu in range(2)]
    assert per_gpu == ([2] * 4 if len(nodes) == 8 else [2, 1, 1, 1]), str(result)


def test_a_failure_under_srun_ends_all_ranks_with_its_code(cluster):
    script = "import os, sys, time; sys.exit(7) if os.environ['RANK'] == '1' else time.sleep(600)"
    command = [sys.executable, "-m", "accdp_comm", "run", "--launcher", "srun", "-n", "3", "--grace", "1"]
    result = cluster.call([*command, sys.executable, "-c", script], SECONDS)
    assert result.returncode == 7 and "accdp run: rank 1 (pid" in result.stderr, str(result)


@pytest.mark.parametrize("options", [["-N1", "-n3"], ["-N2", "-n4", "--ntasks-per-node=2"]], ids=" ".join)
def test_those_that_live_go_on(cluster, options):
    """Rank 0 serves torch's store, and lives."""
    result = cluster.srun([*options, "--mpi=pmi2"], [sys.executable, KEEP_GOING, "1=is_killed"], SECONDS)
    size = int(options[1][2:])
    living = [rank for rank in range(size) if rank != 1]
    told = sorted(result.reports, key=lambda report: report["rank"])
    bits = sum(1 << rank for rank in living)
    assert [{name: report[name] for name in ("rank", "place", "bits")} for report in told] == [
        {"rank": rank, "place": [place, size - 1], "bits": bits} for place, rank in enumerate(living)
    ], str(result)
