"""What `accdp run` is told: options, profiles, host files, GPUs."""

import json

import pytest

from accdp_comm import _core, cli
from accdp_comm.launch import gpus, hosts, options
from accdp_comm.launch.hosts import Host

PROFILE = {"ranks_per_gpu": None, "ranks": 2, "batch_size": 64, "workers": 1, "codec": "fpk", "script": ["t.py", "-x"]}


def parse(*words: str):
    return cli._parser().parse_args(["run", *words])


def test_options_before_the_script_and_arguments_after_it():
    found = parse("--ranks-per-gpu", "4", "--gpus", "0,1", "-n", "8", "--", "python", "train.py", "--gpus", "x")
    assert (found.ranks_per_gpu, found.gpus, found.ranks, found.script) == (4, "0,1", 8, "python")
    assert found.arguments == ["train.py", "--gpus", "x"]


def test_only_dashes_before_the_script_are_ours():
    assert parse("-n", "1", "train.py", "--", "-5").arguments == ["--", "-5"]
    assert parse("-n", "1", "--", "train.py", "--", "-5").arguments == ["--", "-5"]
    assert (parse("-n", "1", "--").script, parse("-n", "1").script) == (None, None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--thread-percentage", "0"], "a percentage from 1 to 100, got '0'"),
        (["--memory-limit", "500k"], "expected auto, 0 for no limit, or 1M and more, got '500k'"),
        (["--memory-limit", "4q"], "expected auto, or bytes, with k, M, G or KiB, MiB, GiB if wanted, got '4q'"),
        (["--grace", "-1"], "expected seconds from 0 to 3600, got '-1'"),
        (["--ranks-per-gpu", "0"], "expected a number of ranks >= 1, got '0'"),
        (["--mps", "maybe"], "invalid choice: 'maybe'"),
    ],
)
def test_mistakes_are_one_line(capsys, words, message):
    with pytest.raises(SystemExit) as leaving:
        parse(*words, "x.py")
    said = capsys.readouterr().err
    assert leaving.value.code == 2 and message in said and said.count("\n") == 1


@pytest.fixture
def profile(tmp_path, monkeypatch):
    for name in ("ACCDP_TUNED_BATCH_SIZE", "ACCDP_TUNED_WORKERS", "ACCDP_CODEC"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "profile.json"

    def write(**changes) -> dict:
        path.write_text(json.dumps(PROFILE | changes))
        return options.read_profile(str(path))

    write.path = str(path)
    return write


def test_a_profile_fills_what_is_left_open(profile, monkeypatch):
    found = parse("--profile", profile.path)
    told = options.apply_profile(found, profile())
    assert (found.ranks, found.script, found.arguments) == (2, "t.py", ["-x"])
    assert told == {"ACCDP_TUNED_BATCH_SIZE": "64", "ACCDP_TUNED_WORKERS": "1", "ACCDP_CODEC": "fpk"}
    monkeypatch.setenv("ACCDP_CODEC", "none")
    assert "ACCDP_CODEC" not in options.apply_profile(found, profile())


def test_explicit_options_win_over_a_profile(profile):
    found = parse("--profile", profile.path, "-n", "5", "own.py", "-y")
    options.apply_profile(found, profile())
    assert (found.ranks, found.script, found.arguments) == (5, "own.py", ["-y"])


def test_ranks_per_gpu_of_a_profile_fit_another_number_of_gpus(profile):
    found = parse("--profile", profile.path)
    options.apply_profile(found, profile(ranks_per_gpu=4, ranks=8))
    assert (found.ranks_per_gpu, found.ranks) == (4, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": "2"}, "ranks is '2', expected a number >= 1 or null"),
        ({"ranks": -3}, "ranks is -3, expected a number >= 1 or null"),
        ({"ranks_per_gpu": 0}, "ranks_per_gpu is 0, expected a number >= 1 or null"),
        ({"workers": True}, "workers is True, expected a number >= 0 or null"),
        ({"codec": 7}, "codec is 7, expected a string or null"),
        ({"script": [1]}, r"script is \[1\], expected a list of strings"),
    ],
)
def test_a_wrong_profile_is_refused(profile, changes, message):
    with pytest.raises(_core.UsageError, match=message):
        profile(**changes)


def test_a_profile_that_is_none_is_refused(tmp_path):
    path = tmp_path / "p"
    with pytest.raises(_core.UsageError, match="No such file"):
        options.read_profile(str(path))
    path.write_text("{")
    with pytest.raises(_core.UsageError, match="not JSON"):
        options.read_profile(str(path))
    path.write_text("[]")
    with pytest.raises(_core.UsageError, match="expected a JSON object, got list"):
        options.read_profile(str(path))
    path.write_text('{"rank": 2, "workers": 1, "a": null}')  # misspelt, say
    with pytest.raises(_core.UsageError, match="p: a, rank: expected only ranks_per_gpu, ranks, batch_size, "):
        options.read_profile(str(path))


def test_a_profile_without_a_script_is_named(profile):
    found = parse("--profile", profile.path)
    options.apply_profile(found, profile(script=None))
    with pytest.raises(_core.UsageError, match="required: SCRIPT, for .*profile.json names none"):
        options.check(found)


def test_something_must_be_started():
    with pytest.raises(_core.UsageError, match="arguments are required: SCRIPT"):
        options.check(parse("-n", "2"))


def test_host_files_of_mpich_and_open_mpi(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# two\na:2\n\nb.domain  slots=3 # fast\n10.0.0.7\n")
    assert hosts.read_hosts(str(path)) == [Host("a", 2), Host("b.domain", 3), Host("10.0.0.7", 0)]
    path.write_text("b\na\nb\na:3\n")  # a line for each rank, as PBS writes them
    assert hosts.read_hosts(str(path)) == [Host("b", 2), Host("a", 4)]


def test_this_host_is_called_as_others_know_it(tmp_path, monkeypatch):
    monkeypatch.setattr(hosts.socket, "gethostname", lambda: "login.domain")
    path = tmp_path / "hosts"
    path.write_text("localhost:1\na:2\nlogin:3\n127.0.0.1\n")
    assert hosts.read_hosts(str(path)) == [Host("login", 5), Host("a", 2)]
    path.write_text("localhost:1\na:2\n")
    assert hosts.read_hosts(str(path)) == [Host("login.domain", 1), Host("a", 2)]
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    assert hosts.read_hosts(str(path)) == [Host("n7", 1), Host("a", 2)]
    path.write_text("localhost:2\n")
    assert hosts.read_hosts(str(path)) == [Host("localhost", 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no host"),
        ("a b c\n", "line 1: expected HOST"),
        ("a:0\n", "line 1: expected HOST.*, got 'a:0'"),
        (f"a:{'9' * 5000}\n", "line 1: expected HOST.*, got 'a:9999"),  # as many as Python makes no number of
        ("\xd0", "expected a text of hosts"),
    ],
)
def test_wrong_host_files_are_refused(tmp_path, text, message):
    path = tmp_path / "hosts"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(_core.UsageError, match=message):
        hosts.read_hosts(str(path))


def test_ranks_fill_hosts_in_order_or_evenly():
    two = [Host("a", 2), Host("b", 3)]
    assert hosts.spread(two, None, None) == two
    assert hosts.spread(two, 3, None) == [Host("a", 2), Host("b", 1)]
    assert hosts.spread(two, 2, None) == [Host("a", 2)]
    assert hosts.spread([Host("a", 0), Host("b", 0)], 5, None) == [Host("a", 3), Host("b", 2)]
    assert hosts.spread([Host("a", 0), Host("b", 0)], None, 4) == [Host("a", 4), Host("b", 4)]
    assert hosts.spread([Host("a", 0), Host("b", 0)], 4, 4) == [Host("a", 2), Host("b", 2)]
    assert hosts.spread([Host("a", 1), Host("b", 0)], 4, 4) == [Host("a", 1), Host("b", 3)]
    eight = [Host(name, 0) for name in "abcdefgh"]
    assert [host.ranks for host in hosts.spread(eight, 9, None)] == [2, 1, 1, 1, 1, 1, 1, 1]
    assert [host.ranks for host in hosts.spread(eight[:4], 10, 4)] == [3, 3, 2, 2]
    assert [host.ranks for host in hosts.spread(eight, 3, 4)] == [1, 1, 1]
    with pytest.raises(_core.UsageError, match="-n 9: the hosts hold 8 ranks together"):
        hosts.spread([Host("a", 0), Host("b", 0)], 9, 4)
    with pytest.raises(_core.UsageError, match="-n 6: the hosts hold 5 ranks together"):
        hosts.spread(two, 6, None)
    with pytest.raises(_core.UsageError, match="give -n N"):
        hosts.spread([Host("a", 0)], None, None)


LISTING = gpus.Listing(
    [gpus.Gpu(index, f"GPU-{index}0-x", "", 0, 9.0, False, "") for index in range(3)], "nvidia-smi", ""
)


def test_gpus_are_chosen_by_index_or_uuid():
    assert gpus.choose(LISTING, "all") == LISTING.gpus and gpus.choose(LISTING, "none") == []
    assert [gpu.index for gpu in gpus.choose(LISTING, "2, GPU-00")] == [2, 0]
    for wanted, message in [("7", "'7' names 0"), ("GPU-", "'GPU-' names 3"), ("0,0", "0 is named twice")]:
        with pytest.raises(_core.UsageError, match=message):
            gpus.choose(LISTING, wanted)
    with pytest.raises(_core.UsageError, match="--gpus 0: no GPUs here: because"):
        gpus.choose(gpus.Listing([], "", "because"), "0")


def test_lists_of_cpus():
    assert gpus.parse_cpus("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
    assert gpus.parse_cpus("\n") == []
