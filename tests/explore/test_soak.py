"""A few seconds of what `qkv bench explore` measures for a minute."""

from __future__ import annotations

from explored import Server

from qkv.benchmarks import explore


def test_twenty_clients_for_three_seconds(server: Server) -> None:
    running = explore.Server(server.port, server.process.pid)
    errors, _, slow, grown = explore.soak(running, clients=20, seconds=3.0)
    assert errors.measured == 0
    assert slow.measured < 2000  # milliseconds; other tests share the cores
    assert grown.measured < 100
