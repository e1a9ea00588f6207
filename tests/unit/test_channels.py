"""Which group an operation without one is of."""

import threading
import time

from accdp_comm import channels


def test_threads_that_come_first_at_once_get_the_same_communicator(monkeypatch):
    """Else ranks may take different ones for the job's, and wait for each other without end."""

    class Slow:
        def __init__(self):
            time.sleep(0.2)

    monkeypatch.setattr(channels, "Communicator", Slow)
    monkeypatch.setattr(channels, "CommunicatorChannel", lambda communicator: communicator)
    monkeypatch.setattr(channels, "torch_channel_of", lambda group: None)
    monkeypatch.setattr(channels, "_everybody", [])
    got, together = [], threading.Barrier(3)
    threads = [
        threading.Thread(target=lambda: (together.wait(), got.append(channels.channel_of(None)))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 3 and len(set(map(id, got))) == 1
