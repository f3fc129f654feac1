"""`python -m benchmarks` compares ortrain with other runtimes on twelve workloads, `python -m benchmarks networks` on twenty-four other networks,
`python -m benchmarks instruction-sets` those with the kernels of each instruction set;
`python -m benchmarks operators` times single operators, `python -m benchmarks scaling` shows how cost grows with the size of the work,
`python -m benchmarks trainer` what the trainer adds to a step, `mpiexec -n 2 python -m benchmarks parallel` what sums of gradients take,
`python -m benchmarks cluster` what many workers and clients would do by a model, `python -m benchmarks federated` how many clients a machine simulates,
`python -m benchmarks native` what the C interface costs, `python -m benchmarks footprint` what an installed wheel takes on the disk and in memory,
`python -m benchmarks privacy` what differential privacy costs, and `python -m benchmarks accuracy` how results in bfloat16 differ from those in float32."""

import sys
from importlib import import_module

COMMANDS = {
    "networks": "benchmarks.networks.run", "instruction-sets": "benchmarks.networks.instruction_sets", "operators": "benchmarks.operators.run",
    "scaling": "benchmarks.scaling", "trainer": "benchmarks.trainer", "parallel": "benchmarks.parallel", "cluster": "benchmarks.cluster.run",
    "federated": "benchmarks.federated", "native": "benchmarks.native", "footprint": "benchmarks.footprint", "privacy": "benchmarks.privacy",
    "accuracy": "benchmarks.accuracy.run"}
"""Command -> the module whose main() runs it with the other arguments."""

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        import_module(COMMANDS[sys.argv[1]]).main(sys.argv[2:])
    else:
        import_module("benchmarks.run").main(sys.argv[1:])
