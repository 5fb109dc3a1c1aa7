// Command grpc-stress puts load and ill treatment on what lies between a gRPC
// client and a gRPC server: `serve` is the server, `drive` the client, which
// does everything twice, straight and through a proxy, and compares.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "serve":
		err = serveCommand(ctx, os.Args[2:])
	case len(os.Args) > 1 && os.Args[1] == "drive":
		err = driveCommand(ctx, os.Args[2:])
	default:
		fmt.Fprintln(os.Stderr, "usage: grpc-stress serve|drive [flags]")
		os.Exit(64)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "grpc-stress: %v\n", err)
		os.Exit(1)
	}
}

func serveCommand(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("serve", flag.ExitOnError)
	socket := flags.String("listen", "", "path of the socket to serve")
	age := flags.Duration("max-connection-age", 0, "send GOAWAY on every connection after this long; 0 for never")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *socket == "" {
		return errors.New("--listen is required")
	}
	return serve(ctx, *socket, *age)
}

func driveCommand(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("drive", flag.ExitOnError)
	direct := flags.String("endpoint", "", "path of the server's socket")
	through := flags.String("through", "", "path of the proxy's socket; empty to drive the server alone")
	load := defaultLoad()
	methods := flags.String("methods", strings.Join(load.methods, ","), "methods to call, by turns")
	flags.IntVar(&load.streams, "streams", load.streams, "streams open at the same time, and calls beside them")
	flags.IntVar(&load.creates, "creates", load.creates, "calls on one connection")
	flags.IntVar(&load.cancels, "cancels", load.cancels, "calls that are cancelled, run out of time or fail")
	flags.IntVar(&load.refusals, "refusals", load.refusals, "creations that are refused, and twice as many beside them")
	flags.DurationVar(&load.storm, "storm", load.storm, "how long to call while the server sends GOAWAY")
	only := flags.String("only", "", "run only these trials, separated by commas: "+strings.Join(trialNames(), ", "))
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if *direct == "" {
		return errors.New("--endpoint is required")
	}
	load.methods = strings.Split(*methods, ",")
	return drive(ctx, load, *direct, *through, *only)
}

// load says how much.
type load struct {
	methods  []string
	streams  int
	creates  int
	cancels  int
	refusals int
	storm    time.Duration
}

// claimed are methods whose requests a proxy with hooks looks into.
var claimed = []string{
	methodCreate,
	"/runtime.v1.RuntimeService/UpdateContainerResources",
}

func defaultLoad() load {
	return load{
		methods: append(slices.Clone(claimed), "/stress.Stress/NobodyKnowsThis"),
		streams: 2000, creates: 100_000, cancels: 400, refusals: 2000, storm: 5 * time.Second,
	}
}

// drive runs the trials against both sockets and compares what they report.
func drive(ctx context.Context, load load, direct, through, only string) error {
	var failures []error
	var patched atomic.Uint64
	for _, trial := range trials {
		named := strings.Contains(","+only+",", ","+trial.name+",")
		if !named && (only != "" || trial.needsName) {
			continue
		}
		wanted, took, err := attempt(ctx, trial, load, direct, nil)
		fmt.Printf("%-12s direct  %8.2f s  %s\n", trial.name, took.Seconds(), wanted)
		if err != nil {
			failures = append(failures, fmt.Errorf("%s, direct: %w", trial.name, err))
			continue
		}
		if through == "" {
			continue
		}
		got, took, err := attempt(ctx, trial, load, through, &patched)
		fmt.Printf("%-12s through %8.2f s  %s\n", trial.name, took.Seconds(), got)
		switch {
		case err != nil:
			failures = append(failures, fmt.Errorf("%s, through the proxy: %w", trial.name, err))
		case got != wanted:
			failures = append(failures, fmt.Errorf("%s differs:\n  direct  %s\n  through %s", trial.name, wanted, got))
		}
	}
	fmt.Printf("%s%d\n", patchedLine, patched.Load())
	return errors.Join(failures...)
}

// patchedLine begins the last line, for who counts at the proxy.
const patchedLine = "creations with what hooks decide: "

func attempt(
	ctx context.Context, trial trial, load load, socket string, patched *atomic.Uint64,
) (string, time.Duration, error) {
	client, err := dial(socket, patched)
	if err != nil {
		return "", 0, err
	}
	defer client.Close()
	started := time.Now()
	report, err := trial.run(ctx, client, load)
	return report, time.Since(started), err
}
