// Command conformance records what a CRI endpoint answers to a fixed list of
// scenarios and compares two such records, field by field.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// command is one subcommand.
type command struct {
	name    string
	summary string
	run     func(ctx context.Context, arguments []string) error
}

var commands = []command{
	{"run", "run the scenarios against an endpoint and write a transcript", runSuite},
	{"compare", "compare two transcripts", runCompare},
	{"mutate", "alter every leaf of a transcript and check that it is noticed", runMutate},
	{"mutate-live", "alter single fields on their way and check that it is noticed", runMutateLive},
	{"registry", "serve one busybox image under every name", runRegistry},
	{"junit", "compare two JUnit reports spec by spec", runJUnit},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 {
		for _, command := range commands {
			if command.name == os.Args[1] {
				if err := command.run(ctx, os.Args[2:]); err != nil {
					fmt.Fprintf(os.Stderr, "conformance %s: %v\n", command.name, err)
					os.Exit(1)
				}
				return
			}
		}
	}
	fmt.Fprintln(os.Stderr, "usage: conformance COMMAND [flags]")
	for _, command := range commands {
		fmt.Fprintf(os.Stderr, "  %-12s %s\n", command.name, command.summary)
	}
	os.Exit(64)
}
