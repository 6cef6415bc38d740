// Command precast compiles diffusion pipelines ahead of time and runs them; see the README.
package main

import (
	"io"
	"os"
)

func main() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// Main is the command line: what a process would do with these arguments, without the process. It returns the exit code: 0 done, 1 the user's
// input, 2 a fault of precast, 3 --cache-only and a compile would have been needed.
func Main(args []string, in io.Reader, out, err io.Writer) int {
	c := &cli{in: in, out: out, err: err}
	return c.main(args)
}
