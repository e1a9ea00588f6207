"""A small simulator of allreduce over many nodes: messages in the order in which the algorithms send them.

A node has one full-duplex link and one processor that speaks with other nodes (of several lanes, one each: they work
alike, so one stands for all, and their messages share the link). A message occupies the sender's link for its bytes,
arrives a latency later, and occupies the receiver's link as long; either processor spends ``message_s`` on it. Links
that are limited by a token bucket, as those of hosts on one machine are, let so many bytes through at once when they
were idle before. All
nodes are arrays of NumPy, and one round, in which each node sends at most one message, is a few operations on them: so
4096 nodes take seconds. What happens on a node (csrc/coll/cost.hpp tells its time) is added between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from accdp_comm import _core

Times = NDArray[np.float64]  # seconds, one per node
Nodes = NDArray[np.int64]


@dataclass(frozen=True)
class Burst:
    """Messages to every node, as many to each: when a processor that did nothing else would have taken them."""

    taken: Times
    count: int


class Network:
    """Clocks of all nodes: when each processor and each direction of each link is free."""

    def __init__(self, shape: _core.Shape, machine: _core.Machine, bucket_bytes: float = 0.0):
        self.credit_s = bucket_bytes / machine.link_bytes_per_s
        self.shape, self.machine, self.nodes = shape, machine, shape.nodes
        self.ids = np.arange(self.nodes)
        self.processor, self.out, self.into = (np.zeros(self.nodes) for _ in range(3))

    def work(self, seconds: float) -> None:
        """Let every processor compute for so long."""
        self.processor += seconds

    def post(self, senders: Nodes, receivers: Nodes, nbytes: float) -> Times:
        """Send one message from each of some nodes to another; return when they arrive."""
        link_s, overhead = nbytes / self.machine.link_bytes_per_s, self.machine.message_s
        self.processor[senders] += overhead
        ready = self.processor[senders]
        self.out[senders] = np.maximum(ready, self.out[senders]) + link_s
        left = np.maximum(ready, self.out[senders] - self.credit_s)  # its last byte; with credit all of it at once
        flight = max(self.machine.latency_s - 2 * overhead, 0.0)
        first = np.maximum(ready, left - link_s) + flight
        self.into[receivers] = np.maximum(first, self.into[receivers]) + link_s
        return np.maximum(left + flight, self.into[receivers] - self.credit_s)

    def pass_on(self, senders: Nodes, receivers: Nodes, nbytes: float) -> None:
        """Send one message from each of some nodes to another, which waits for it and takes it."""
        arrived = self.post(senders, receivers, nbytes)
        self.processor[receivers] = np.maximum(self.processor[receivers], arrived) + self.machine.message_s

    def post_to_all(self, nbytes: float) -> Burst:
        """Every node sends to every other, the next one first."""
        return self.post_to(range(1, self.nodes), nbytes)

    def post_to(self, steps: Sequence[int], nbytes: float) -> Burst:
        """Every node sends to those that lie so many places behind it."""
        taken = np.zeros(self.nodes)
        for step in steps:
            receivers = (self.ids + step) % self.nodes
            arrived = self.post(self.ids, receivers, nbytes)
            taken[receivers] = np.maximum(taken[receivers], arrived) + self.machine.message_s
        return Burst(taken, len(steps))

    def gather_at_hub(self, nbytes: float) -> None:
        """Let every other node send to node 0, which takes what comes."""
        for node in range(1, self.nodes):
            self.pass_on(self.ids[node : node + 1], self.ids[:1], nbytes)

    def tell_from_hub(self, nbytes: float) -> None:
        """Let node 0 send to every other, which waits for it."""
        for node in range(1, self.nodes):
            self.pass_on(self.ids[:1], self.ids[node : node + 1], nbytes)

    def take(self, burst: Burst) -> None:
        """Let every processor wait for its messages and take them."""
        self.processor = np.maximum(self.processor + burst.count * self.machine.message_s, burst.taken)

    def fold(self, nbytes: float, nodes: Nodes | slice = slice(None)) -> None:
        """Reduce so many bytes of sources."""
        self.processor[nodes] += nbytes / self.machine.reduce_bytes_per_s

    @property
    def end(self) -> float:
        """When the last node is done."""
        return float(self.processor.max())


def on_node(op: str, nbytes: float, network: Network, *, flat: bool = True) -> float:
    """Return the seconds of an operation among the ranks of one node, by the library's own cost functions."""
    shape = network.shape
    if shape.local_size == 1:
        return 0.0
    sizes = {"slot_bytes": shape.slot_bytes, "flat_bytes": shape.flat_bytes if flat else 0}
    alone = _core.Shape(nodes=1, local_size=shape.local_size, **sizes)
    return float(_core.plan(op, int(nbytes), alone, network.machine)[0]["seconds"])


def ring(network: Network, nbytes: int) -> None:
    """Reduce-scatter, then allgather, round a ring of leaders."""
    share = nbytes / network.nodes
    for step in range(2 * (network.nodes - 1)):
        network.pass_on(network.ids, (network.ids + 1) % network.nodes, share)
        if step < network.nodes - 1:
            network.fold(2 * share)


def binomial_tree(network: Network, nbytes: int) -> None:
    """Reduce up a binomial tree of leaders, then broadcast down it."""
    distances = [1 << bit for bit in range((network.nodes - 1).bit_length())]
    for distance in distances:
        senders = np.arange(distance, network.nodes, 2 * distance)
        network.pass_on(senders, senders - distance, nbytes)
        network.fold(2 * nbytes, senders - distance)
    for distance in reversed(distances):
        receivers = np.arange(distance, network.nodes, 2 * distance)
        network.pass_on(receivers - distance, receivers, nbytes)


def recursive_doubling(network: Network, nbytes: int) -> None:
    """Leaders exchange all of it in pairs; those above a power of two come in before, and get the result after."""
    whole = 1 << (network.nodes.bit_length() - 1)
    extra, among = np.arange(whole, network.nodes), np.arange(whole)
    network.pass_on(extra, extra - whole, nbytes)
    network.fold(2 * nbytes, extra - whole)
    for bit in range(whole.bit_length() - 1):
        network.pass_on(among, among ^ (1 << bit), nbytes)
        network.fold(2 * nbytes, among)
    network.pass_on(extra - whole, extra, nbytes)


def direct(network: Network, nbytes: int) -> None:
    """Every leader sends all of it to every other, and reduces by itself."""
    network.take(network.post_to_all(nbytes))
    network.fold(network.nodes * nbytes)


def pipeline(network: Network, nbytes: int, lanes: int, frame_bytes: int) -> None:
    """Frames to their nodes and back, several segments under way (csrc/coll/reduce_over_nodes.cpp)."""
    nodes = network.nodes
    segment = min(nbytes, frame_bytes * nodes * lanes)
    segments = -(-nbytes // max(segment, 1))
    ahead = _core.segments_under_way(segment)
    begin_s = on_node("allreduce", segment, network, flat=lanes == 1)
    end_s = begin_s / 2 if lanes > 1 else on_node("bcast", segment, network)
    begin_s -= end_s if lanes > 1 else 0.0  # with lanes, its two steps are before and after the wire
    contributions: dict[int, Burst] = {}
    results: dict[int, Burst] = {}

    def fold_next() -> None:
        number = min(contributions)
        network.take(contributions.pop(number))
        network.fold(nodes * frame_bytes)
        results[number] = network.post_to_all(frame_bytes * lanes)

    for turn in range(segments + ahead - 1):
        if turn < segments:
            network.work(begin_s)
            contributions[turn] = network.post_to_all(frame_bytes * lanes)
        if (done := turn - (ahead - 1)) >= 0:
            if done not in results:
                fold_next()
            # While it waits for this segment's results it folds what comes of later ones.
            while contributions and contributions[min(contributions)].taken.min() <= results[done].taken.max():
                fold_next()
            network.take(results.pop(done))
            network.work(end_s)


def meet(network: Network) -> None:
    """Compare signatures, as every operation of accdp does first (csrc/coll/meeting.hpp)."""
    network.work(network.machine.step_s if network.shape.local_size > 1 else 0.0)
    if network.shape.meets_at_hub:
        network.gather_at_hub(_core.SIGNATURE_BYTES)
        return network.tell_from_hub(_core.SIGNATURE_BYTES)
    for distance, messages in _core.meeting_rounds(network.nodes):
        steps = [step * distance for step in range(1, messages + 1)]
        network.take(network.post_to(steps, _core.SIGNATURE_BYTES))


def between_leaders(algorithm: Callable[[Network, int], None]) -> Callable[[Network, int], None]:
    """Wrap an algorithm of leaders into a reduction on each node before it and a broadcast after it."""

    def whole(network: Network, nbytes: int) -> None:
        network.work(on_node("reduce", nbytes, network))
        algorithm(network, nbytes)
        network.work(on_node("bcast", nbytes, network))

    return whole


def direct_with_signatures(network: Network, nbytes: int) -> None:
    """The leader adds up its node, tells all others with its signature, reduces by itself and shows its node."""
    ranks = network.shape.local_size
    step_s = network.machine.step_s if ranks > 1 else 0.0
    network.work(step_s)
    network.fold(ranks * nbytes if ranks > 1 else 0)
    if network.shape.meets_at_hub:
        network.gather_at_hub(_core.SIGNATURE_BYTES + nbytes)
        network.fold(network.nodes * nbytes, network.ids[:1])
        network.tell_from_hub(_core.SIGNATURE_BYTES + nbytes)
    else:
        network.take(network.post_to_all(_core.SIGNATURE_BYTES + nbytes))
        network.fold(network.nodes * nbytes)
    network.work(step_s)


_LEADERS = {"direct": direct, "recursive_doubling": recursive_doubling, "ring": ring}


def hierarchy(network: Network, nbytes: int) -> None:
    """Play what accdp's own plan says."""
    chosen = _core.plan("allreduce", nbytes, network.shape, network.machine)[0]
    if chosen["algorithm"] == "direct" and _core.reduces_with_signatures(nbytes, network.shape):
        return direct_with_signatures(network, nbytes)
    meet(network)
    if chosen["algorithm"] == "pipeline":
        pipeline(network, nbytes, chosen["lanes"], chosen["chunk_bytes"])
    else:
        between_leaders(_LEADERS[chosen["algorithm"]])(network, nbytes)


ALGORITHMS = {
    "ring": between_leaders(ring),
    "binomial tree": between_leaders(binomial_tree),
    "recursive doubling": between_leaders(recursive_doubling),
    "accdp": hierarchy,
}


def seconds_of(name: str, nbytes: int, shape: _core.Shape, machine: _core.Machine) -> float:
    """Simulate one allreduce; return the time until the last node is done."""
    network = Network(shape, machine)
    ALGORITHMS[name](network, nbytes)
    return network.end


SAMPLES = 20  # until the buckets are as full as they stay


def seconds_in_a_row(nbytes: int, shape: _core.Shape, machine: _core.Machine, calls: int, bucket_bytes: float) -> float:
    """Simulate what bench/model_rank.py does: samples of some calls of accdp's allreduce, and what lies between them.

    Returns:
        The seconds of a call, in the last sample.
    """
    network = Network(shape, machine, bucket_bytes)
    seconds = 0.0
    for _ in range(SAMPLES):
        meet(network)  # the barrier before
        began = network.end
        for _ in range(calls):
            hierarchy(network, nbytes)
        seconds = (network.end - began) / calls
        hierarchy(network, 8)  # the slowest rank's time
    return seconds
