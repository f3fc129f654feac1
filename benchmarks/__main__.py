"""python -m benchmarks: the comparison with other runtimes; python -m benchmarks scaling: how cost grows with the work."""

import sys

if sys.argv[1:2] == ["scaling"]:
    from benchmarks.scaling import main as scaling

    scaling(sys.argv[2:])
else:
    from benchmarks.run import main

    main()
