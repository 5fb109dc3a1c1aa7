// Command nri-end is the other end of an NRI socket, made of the parts that
// runtimes and plugins are made of: `echo` is multiplexer and ttrpc alone, with
// messages of every size both ways, `runtime` is containerd's adaptation,
// `plugin` is the stub that plugins use.
package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// limit is how long any of them may take.
const limit = 60 * time.Second

func main() {
	modes := map[string]func(context.Context, string) error{
		"echo":    echo,
		"runtime": runtime,
		"plugin":  plugin,
	}
	if len(os.Args) != 3 || modes[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: nri-end echo|runtime|plugin SOCKET")
		os.Exit(64)
	}
	ctx, stop := context.WithTimeout(context.Background(), limit)
	defer stop()
	if err := modes[os.Args[1]](ctx, os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "nri-end: %v\n", err)
		os.Exit(1)
	}
	fmt.Println("done")
}
