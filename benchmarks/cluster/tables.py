"""The tables of docs/how-to/scale.md and of docs/how-to/data-parallel.md, from measured times: efficiency, and what the model makes of them."""

from __future__ import annotations

from typing import Any

from benchmarks.cluster.model import Clients, Network, Step, local, overlapped, ring, round_time, summed, tree
from benchmarks.tables import round_figure

NETWORKS = {"1 Gbit/s, 50 µs": (1, 50), "10 Gbit/s, 50 µs": (10, 50), "100 Gbit/s, 50 µs": (100, 50), "10 Gbit/s, 20 ms": (10, 20_000)}
"""Name -> (gigabits per second, microseconds)."""
WORKER_WORKLOADS = "resnet18-cifar", "bert-mini"
CLIENT_WORKLOADS = "cnn-lenet", "mobilenetv2-full"
WORKERS = 8, 64, 256, 1024
CLIENTS = 10, 100, 1000, 10_000, 100_000
SERVERS = 1, 10, 100
"""Gigabits per second of the server of a federation."""
ANSWERS = 0.9
"""The share of clients that a round waits for."""


def table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table whose first column is text."""
    lines = [f"| {' | '.join(titles)} |", "|---|" + "---:|" * (len(titles) - 1), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines) + "\n"


def percent(share: float) -> str:
    """Format a share; below one percent with a digit after the point."""
    return f"{100 * share:.0f} %" if share >= 0.0095 else f"{100 * share:.1f} %"


def efficiency(alone: float, together: float, workers: int, cpus: int) -> float:
    """Return how much of the time of the processors is not lost, where several workers may share one."""
    return alone * workers / (together * min(workers, cpus))


def efficiency_table(results: dict[str, Any]) -> str:
    """Render the step of one worker beside those of several on the same machine."""
    runs = [(library, int(size)) for library, sizes in results["runs"].items() for size in sizes]
    titles = ["gradients", "one worker, ms"]
    for library, size in runs:
        titles += [f"{size} workers, {library}, ms", "efficiency", "in sums"]
    first_library, first_size = runs[0]
    rows = []
    for name, row in results["runs"][first_library][str(first_size)]["steps"].items():
        cells = [f"{name} MB", round_figure(row["alone_ms"])]
        for library, size in runs:
            found = results["runs"][library][str(size)]["steps"][name]
            cells += [round_figure(found["together_ms"]), percent(efficiency(found["alone_ms"], found["together_ms"], size, results["cpus"])),
                      percent(found["in_sums"])]
        rows.append(cells)
    return table(titles, rows)


def sharding_table(results: dict[str, Any]) -> str:
    """Render the time of a step and the memory of a worker with whole optimizers and with a sharded one."""
    rows = []
    for library, sizes in results["runs"].items():
        for size, run in sizes.items():
            whole, sharded = run["sharding"]["whole"], run["sharding"]["sharded"]
            rows.append([f"{size}, {library}", *(f"{row['megabytes']:.0f}" for row in (whole, sharded)),
                         *(round_figure(row["milliseconds"]) for row in (whole, sharded))])
    return table(["workers", "whole, MB", "sharded, MB", "whole, ms a step", "sharded, ms a step"], rows)


def model_check_table(results: dict[str, Any]) -> str:
    """Render measured steps of workers on networks that were simulated by waiting, beside those of the model."""
    rows = []
    for library, sizes in results["runs"].items():
        for size, run in sizes.items():
            name, alone = next(reversed(run["steps"].items()))
            if int(size) > results["cpus"]:
                continue
            step = Step(alone["alone_ms"] / 1e3, results["backward"], 0.0, float(name) * 1e6)
            for gigabits, (after, beside) in run["networks"].items():
                network = Network.of(float(gigabits), results["latency_us"])
                modelled = [1e3 * kind(step, int(size), network, ring) for kind in (summed, overlapped)]
                rows.append([f"{gigabits} Gbit/s, {size} workers, {library}", round_figure(after), round_figure(modelled[0]), round_figure(beside),
                             round_figure(modelled[1])])
    return table(["network", "sums after the pass, ms", "model, ms", "sums beside it, ms", "model, ms"], rows)


def workers_table(results: dict[str, Any], workload: str) -> str:
    """Render the efficiency of many workers on a workload by the model."""
    measured = results["steps"][workload]
    step = Step(measured["step_ms"] / 1e3, measured["backward"], results["variation"], measured["gradient_mb"] * 1e6)
    rows = []
    for name, (gigabits, microseconds) in NETWORKS.items():
        network = Network.of(gigabits, microseconds)
        for workers in WORKERS:
            times = [summed(step, workers, network, ring), summed(step, workers, network, tree), overlapped(step, workers, network, tree),
                     local(step, workers, network, tree, 10), local(step, workers, network, tree, 100)]
            rows.append([f"{name}, {workers} workers", *(percent(step.seconds / time) for time in times)])
    return table(["network", "ring", "tree", "tree, overlapped", "LocalSGD(10)", "LocalSGD(100)"], rows)


def clients_table(results: dict[str, Any], workload: str) -> str:
    """Render the time of a federated round of a workload by the model."""
    measured = results["clients"][workload]
    clients = Clients(measured["step_ms"] / 1e3, results["client_steps"], measured["model_mb"] * 1e6)
    rows = []
    for count in CLIENTS:
        def seconds(share: float, gigabits: float, count: int = count) -> str:
            return f"{round_time(clients, count, share, gigabits * 1e9 / 8, results['aggregation_s_per_gb'] / 1e9):.1f}"

        rows.append([f"{count:,}", *(seconds(ANSWERS, gigabits) for gigabits in SERVERS), seconds(1.0, SERVERS[-1])])
    titles = [f"{gigabits} Gbit/s, s" for gigabits in SERVERS]
    return table(["clients", *titles, f"all that answer, {SERVERS[-1]} Gbit/s, s"], rows)
