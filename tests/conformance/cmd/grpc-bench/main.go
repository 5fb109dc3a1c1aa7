// Command grpc-bench is both ends of a measurement with the gRPC library that
// kubelets and container runtimes are built with: `serve` is a runtime that
// does nothing and answers at once, `call` calls a method over and over with
// the message that it reads from its input, and prints how long that took.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve":
		err = serveCommand(ctx, os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "call":
		err = callCommand(ctx, os.Args[2:])
	default:
		fmt.Fprintln(os.Stderr, "usage: grpc-bench serve|call [flags]")
		os.Exit(64)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "grpc-bench: %v\n", err)
		os.Exit(1)
	}
}

func serveCommand(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	socket := flags.String("socket", "", "path of the socket to serve")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	return serve(ctx, *socket)
}

func callCommand(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("call", flag.ExitOnError)
	socket := flags.String("socket", "", "path of the socket to call")
	method := flags.String("method", "", "full name of the method, as /package.Service/Method")
	callers := flags.Int("callers", 1, "callers, each with a connection and one call at a time")
	calls := flags.Int("calls", 1, "calls of all callers together")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	message, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	return call(ctx, load{*socket, *method, message, *callers, *calls}, os.Stdout)
}
