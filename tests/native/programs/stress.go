// Compiled together with train_digits.go: while it trains, goroutines dereference nil, grow their stacks and collect garbage, and the
// runtime sends its signals of preemption to the threads.
package main

import "runtime"

var nothing *int

// fault raises a SIGSEGV, which the runtime makes a panic of.
func fault() {
	defer func() { recover() }()
	*nothing = 1
}

func deep(level int) int {
	if level == 0 {
		return 0
	}
	return deep(level-1) + 1
}

func init() {
	runtime.GOMAXPROCS(4)
	for i := 0; i < 3; i++ {
		go func() {
			for round := 0; ; round++ {
				fault()
				deep(1000)
				if round%1000 == 0 {
					runtime.GC()
				}
			}
		}()
	}
}
