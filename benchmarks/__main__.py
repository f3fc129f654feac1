"""python -m benchmarks."""

from benchmarks.run import main

main()
