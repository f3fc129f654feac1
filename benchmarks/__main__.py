"""`python -m benchmarks` compares ortrain with other runtimes on twelve workloads, `python -m benchmarks networks` on twenty-four other networks,
`python -m benchmarks instruction-sets` those with the kernels of each instruction set;
`python -m benchmarks operators` times single operators, `python -m benchmarks scaling` shows how cost grows with the size of the work,
`python -m benchmarks trainer` what the trainer adds to a step, `mpiexec -n 2 python -m benchmarks parallel` what sums of gradients take,
`python -m benchmarks cluster` what many workers and clients would do by a model, `python -m benchmarks federated` how many clients a machine simulates,
`python -m benchmarks native` what the C interface costs, and `python -m benchmarks accuracy` how results in bfloat16 differ from those in float32."""

import sys

if sys.argv[1:2] == ["scaling"]:
    from benchmarks.scaling import main as scaling

    scaling(sys.argv[2:])
elif sys.argv[1:2] == ["networks"]:
    from benchmarks.networks.run import main as networks

    networks(sys.argv[2:])
elif sys.argv[1:2] == ["operators"]:
    from benchmarks.operators.run import main as operators

    operators(sys.argv[2:])
elif sys.argv[1:2] == ["accuracy"]:
    from benchmarks.accuracy.run import main as accuracy

    accuracy(sys.argv[2:])
elif sys.argv[1:2] == ["trainer"]:
    from benchmarks.trainer import main as trainer

    trainer(sys.argv[2:])
elif sys.argv[1:2] == ["parallel"]:
    from benchmarks.parallel import main as parallel

    parallel(sys.argv[2:])
elif sys.argv[1:2] == ["instruction-sets"]:
    from benchmarks.networks.instruction_sets import main as instruction_sets

    instruction_sets(sys.argv[2:])
elif sys.argv[1:2] == ["cluster"]:
    from benchmarks.cluster.run import main as cluster

    cluster(sys.argv[2:])
elif sys.argv[1:2] == ["federated"]:
    from benchmarks.federated import main as federated

    federated(sys.argv[2:])
elif sys.argv[1:2] == ["native"]:
    from benchmarks.native import main as native

    native()
else:
    from benchmarks.run import main

    main()
