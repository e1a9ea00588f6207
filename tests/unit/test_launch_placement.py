"""Where ranks run: GPUs, cores, threads, shares of a GPU, and the variables that tell them."""

from dataclasses import replace

import pytest

from accdp_comm import _core
from accdp_comm.launch import environment, placement
from accdp_comm.launch.gpus import Gpu

A, B = (Gpu(index, f"GPU-{name}", "Stand-in", 80 << 30, 9.0, False, "") for index, name in enumerate("ab"))
EIGHT = [[cpu] for cpu in range(8)]


def cpus(places: list[placement.Place]) -> list[list[int]]:
    return [place.cpus for place in places]


@pytest.mark.parametrize("ranks", range(1, 40))
@pytest.mark.parametrize("cores", [1, 2, 3, 8, 13])
def test_ranks_divide_the_cores_or_share_all(ranks, cores):
    places = placement.place_ranks(ranks, [[cpu] for cpu in range(cores)])
    used = [cpu for place in places for cpu in place.cpus]
    if ranks <= cores:
        assert sorted(used) == list(range(cores)), "each core belongs to one rank"
        counts = [len(place.cpus) for place in places]
        assert max(counts) - min(counts) <= 1 and [place.threads for place in places] == counts
    else:
        assert all(place.cpus == list(range(cores)) and place.threads == 1 for place in places)
    assert [(place.local_rank, place.local_size) for place in places] == [(rank, ranks) for rank in range(ranks)]


def test_threads_of_one_core_stay_together():
    places = placement.place_ranks(2, [[0, 4], [1, 5], [2, 6], [3, 7]])
    assert cpus(places) == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [place.threads for place in places] == [2, 2]


def test_unbound_ranks_still_know_their_share():
    places = placement.place_ranks(2, EIGHT, bind=False)
    assert cpus(places) == [[], []] and [place.threads for place in places] == [4, 4]


def test_neighbours_share_a_gpu_and_sit_near_it():
    near = {"GPU-a": frozenset(range(4)), "GPU-b": frozenset(range(4, 8))}
    places = placement.place_ranks(4, EIGHT, [A, B], near)
    assert [place.gpu for place in places] == [A, A, B, B]
    assert [place.ranks_on_gpu for place in places] == [2] * 4
    assert cpus(places) == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_an_uneven_number_of_ranks_is_spread():
    places = placement.place_ranks(5, EIGHT, [A, B])
    assert [place.gpu.index for place in places if place.gpu] == [0, 0, 0, 1, 1]
    assert [place.ranks_on_gpu for place in places] == [3, 3, 3, 2, 2]


def test_a_numa_node_outside_the_affinity_mask_is_no_wish():
    places = placement.place_ranks(2, [[0], [1]], [A, B], {"GPU-b": frozenset({64, 65})})
    assert cpus(places) == [[0], [1]]


def test_no_core_is_given_twice():
    """One GPU's cores may be used, the other's may not, or are not known: its rank is no guest on the first one's."""
    near = {"GPU-a": frozenset(range(4)), "GPU-b": frozenset({64, 65})}
    for known in (near, {"GPU-a": near["GPU-a"]}):
        assert cpus(placement.place_ranks(2, EIGHT, [A, B], known)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert cpus(placement.place_ranks(4, EIGHT, [A, B], known)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
        assert [place.threads for place in placement.place_ranks(4, EIGHT, [A, B], known)] == [2] * 4


def test_who_is_known_to_be_near_a_gpu_stays_there():
    gpus = [A, B, replace(A, uuid="GPU-c"), replace(A, uuid="GPU-d")]
    near = {"GPU-a": frozenset({4, 5, 6, 7}), "GPU-b": frozenset({4, 5, 6, 7}), "GPU-c": frozenset({0, 1, 2, 3})}
    assert cpus(placement.place_ranks(4, EIGHT, gpus, near)) == [[4, 5], [6, 7], [0, 1], [2, 3]]
    near = {"GPU-a": frozenset({6, 7}), "GPU-b": frozenset({6, 7})}
    assert cpus(placement.place_ranks(4, EIGHT, gpus, near)) == [[6], [7], [0, 1, 2], [3, 4, 5]]


def test_wishes_that_overlap_are_nobodys():
    near = {"GPU-a": frozenset(range(6)), "GPU-b": frozenset(range(4, 8))}
    assert cpus(placement.place_ranks(2, EIGHT, [A, B], near)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(("quota", "threads"), [(4.0, 2), (5.5, 2), (0.5, 1), (7.9, 3)])
def test_a_quota_gives_time_and_no_cores(quota, threads):
    places = placement.place_ranks(2, EIGHT, quota=quota)
    assert cpus(places) == [list(range(8))] * 2 and [place.threads for place in places] == [threads] * 2


def test_a_quota_above_the_mask_changes_nothing():
    assert placement.place_ranks(2, EIGHT, quota=8.0) == placement.place_ranks(2, EIGHT)
    hyperthreads = [[0, 4], [1, 5], [2, 6], [3, 7]]
    limited = placement.place_ranks(2, hyperthreads, quota=4.0)  # half of these CPUs' time
    assert cpus(limited) == [list(range(8))] * 2
    assert [place.threads for place in limited] == [2, 2]


def test_a_quota_leaves_ranks_near_their_gpu():
    near = {"GPU-a": frozenset(range(4)), "GPU-b": frozenset(range(4, 8))}
    places = placement.place_ranks(2, EIGHT, [A, B], near, quota=4.0)
    assert cpus(places) == [[0, 1, 2, 3], [4, 5, 6, 7]] and [place.threads for place in places] == [2, 2]


def test_gpus_on_one_numa_node_divide_its_cores():
    near = dict.fromkeys(("GPU-a", "GPU-b"), frozenset(range(4)))
    assert cpus(placement.place_ranks(4, EIGHT, [A, B], near)) == [[0], [1], [2], [3]]


def test_number_of_ranks():
    assert placement.count_ranks(3, None, 0) == 3
    assert placement.count_ranks(None, 4, 2) == 8
    assert placement.count_ranks(5, 4, 2) == 5
    with pytest.raises(_core.UsageError, match="-n 9: --ranks-per-gpu 4 on 2 GPUs has room for 8"):
        placement.count_ranks(9, 4, 2)


def test_a_host_has_room_for_so_many():
    placement.check_room("node1", 4, 2, 2)
    with pytest.raises(
        _core.UsageError, match="--ranks-per-gpu 2: node1 would get 5 ranks, .* room for 4 on the 2 GPUs"
    ):
        placement.check_room("node1", 5, 2, 2)
    with pytest.raises(_core.UsageError, match="on the 0 GPUs that are listed there: none$"):
        placement.check_room("node1", 1, 2, 0, "none")


def test_cores_are_those_of_all_processes_of_a_node():
    """Of which a launcher may have bound each to a part, as Intel MPI does, or Hydra when it is asked to."""
    assert placement.all_cores([[[0, 4]], [[1, 5]]]) == [[0, 4], [1, 5]]
    assert placement.all_cores([[[0, 4], [1]]] * 3) == [[0, 4], [1]]
    assert placement.all_cores([[[0], [1, 5]], [[0, 4]], [[4]]]) == [[0, 4], [1, 5]]


def test_shares_of_a_gpu():
    assert [placement.thread_percentage("auto", k) for k in (1, 2, 3, 4, 8, 48)] == [100, 100, 66, 50, 25, 4]
    assert placement.thread_percentage("30", 8) == 30
    assert placement.memory_limit("auto", 1, 80 << 30) == 0
    assert placement.memory_limit("auto", 4, 80 << 30) == int((80 << 30) * 0.95) // 4
    assert placement.memory_limit(str(2 << 30), 4, 80 << 30) == 2 << 30


def variables(place: placement.Place, inherited=None, **options) -> dict:
    return environment.rank_environment(3, 4, place, ("10.0.0.1", 7), inherited or {}, **options)


def test_a_rank_without_gpu_counts_on_its_node():
    told = variables(placement.Place(1, 2, None, 0, [0], 5))
    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("3", "4", "1", "2")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["OMP_NUM_THREADS"]) == ("10.0.0.1", "7", "5")
    assert "CUDA_VISIBLE_DEVICES" not in told
    assert told["TORCHELASTIC_USE_AGENT_STORE"] is None, "rank 0 opens the store"


def test_local_rank_is_the_device_of_a_rank_that_sees_one():
    place = placement.Place(1, 2, A, 2, [], 1)
    told = variables(place)
    assert (told["CUDA_VISIBLE_DEVICES"], told["LOCAL_RANK"], told["LOCAL_WORLD_SIZE"]) == ("GPU-a", "0", "1")
    assert (told["ACCDP_LOCAL_RANK"], told["ACCDP_RANKS_PER_GPU"]) == ("1", "2")
    assert variables(place, node_local_rank=True)["LOCAL_RANK"] == "1"


def test_what_the_user_set_stays():
    place = placement.Place(0, 1, None, 0, [], 5)
    mine = {"MASTER_ADDR": "h", "MASTER_PORT": "1", "OMP_NUM_THREADS": "9", "ACCDP_CODEC": "lz4"}
    told = variables(place, mine, tuned={"ACCDP_CODEC": "fpk", "ACCDP_TUNED_WORKERS": "2"})
    assert mine.items() <= (mine | told).items() and told["ACCDP_TUNED_WORKERS"] == "2"
    # torchrun as the launcher has set others when this is applied.
    assert (told["MASTER_ADDR"], told["MASTER_PORT"], told["TORCHELASTIC_USE_AGENT_STORE"]) == ("h", "1", None)


def test_a_store_that_is_served_is_not_opened_by_rank_0():
    place = placement.Place(0, 1, None, 0, [], 5)
    assert variables(place, is_served=True)["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    theirs = {"MASTER_ADDR": "h", "MASTER_PORT": "1"}  # who opens it is not known
    assert variables(place, theirs, is_served=True)["TORCHELASTIC_USE_AGENT_STORE"] is None


def test_a_job_within_a_job_has_a_meeting_place_of_its_own():
    place = placement.Place(0, 1, None, 0, [], 5)
    outer = variables(place)
    inherited = {name: value for name, value in outer.items() if value is not None}
    inner = environment.rank_environment(0, 2, place, ("h", 7), inherited)
    assert (inner["MASTER_ADDR"], inner["MASTER_PORT"]) == ("h", "7")
    users = environment.rank_environment(0, 2, place, ("h", 7), inherited | {"MASTER_PORT": "9"})
    assert users["MASTER_PORT"] == "9"
    torchruns = {"MASTER_ADDR": "h", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_RESTART_COUNT": "0"}
    inner = environment.rank_environment(0, 2, place, ("h", 7), torchruns)
    assert inner["MASTER_PORT"] == "7" and inner["TORCHELASTIC_RUN_ID"] is inner["TORCHELASTIC_RESTART_COUNT"] is None


def test_a_client_of_mps_is_told_its_share():
    place = placement.Place(0, 1, A, 4, [], 1)
    told = variables(place, mps=environment.MpsShare("/p", "/l", 50, 3 << 30))
    assert [told[name] for name in environment.MPS_VARIABLES] == ["/p", "/l", "50", "0=3072M"]
    # None removes what the launcher of the launcher may have set: these ranks are not limited.
    assert variables(place, mps=environment.MpsShare("/p", "/l", 100, 0))["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] is None
