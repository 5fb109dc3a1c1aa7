package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"

	"koord/conformance/internal/compare"
	"koord/conformance/internal/junit"
	"koord/conformance/internal/mutate"
	"koord/conformance/internal/registry"
	"koord/conformance/internal/suite"
	"koord/conformance/internal/transcript"
)

// suiteFlags are the flags of every command that runs scenarios.
func suiteFlags(flags *flag.FlagSet) *suite.Config {
	config := &suite.Config{
		Log: func(format string, arguments ...any) { fmt.Fprintf(os.Stderr, format+"\n", arguments...) },
	}
	flags.StringVar(&config.Endpoint, "endpoint", "", "path of the CRI socket")
	flags.StringVar(&config.Image, "image", "koord.test/busybox:1", "a busybox image that the runtime has")
	flags.StringVar(&config.CgroupParent, "cgroup-parent", "", "cgroup to make the pods' cgroups in; created and removed")
	flags.StringVar(&config.RestartCommand, "restart-cmd", "", "shell command that restarts the runtime")
	flags.Func("only", "run only these scenarios, separated by commas", func(list string) error {
		for _, name := range strings.Split(list, ",") {
			if !slices.Contains(suite.Names(), name) {
				return fmt.Errorf("no scenario %q; there are: %s", name, strings.Join(suite.Names(), ", "))
			}
			config.Only = append(config.Only, name)
		}
		return nil
	})
	return config
}

func checkSuiteFlags(config *suite.Config) error {
	var missing []error
	if config.Endpoint == "" {
		missing = append(missing, errors.New("--endpoint is required"))
	}
	if config.CgroupParent == "" {
		missing = append(missing, errors.New("--cgroup-parent is required"))
	}
	return errors.Join(missing...)
}

func runSuite(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("run", flag.ExitOnError)
	config := suiteFlags(flags)
	out := flags.String("out", "transcript.json", "file to write")
	paths := map[string]string{}
	flags.Func("path", "LABEL=DIR of this run that replies may mention (repeatable)", func(pair string) error {
		label, path, ok := strings.Cut(pair, "=")
		if !ok || path == "" {
			return fmt.Errorf("%q is not LABEL=DIR", pair)
		}
		paths[label] = path
		return nil
	})
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if err := checkSuiteFlags(config); err != nil {
		return err
	}
	recorded, err := suite.Run(ctx, *config)
	if err != nil {
		return err
	}
	for label, path := range paths {
		recorded.Paths[label] = path
	}
	if err := recorded.Write(*out); err != nil {
		return err
	}
	if broken := recorded.Broken(); len(broken) > 0 {
		return fmt.Errorf("%d steps failed that must succeed:\n  %s", len(broken), strings.Join(broken, "\n  "))
	}
	return nil
}

func runCompare(_ context.Context, arguments []string) error {
	flags := flag.NewFlagSet("compare", flag.ExitOnError)
	allow := flags.String("allow", "", "file with announced differences")
	propose := flags.Bool("propose", false, "print the differences in the form of an allow list, to be checked by hand")
	limit := flags.Int("limit", 40, "differences to print")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() != 2 {
		return errors.New("two transcripts are needed: compare [flags] A.json B.json")
	}
	a, err := transcript.Read(flags.Arg(0))
	if err != nil {
		return err
	}
	b, err := transcript.Read(flags.Arg(1))
	if err != nil {
		return err
	}
	var allowed []compare.Announcement
	if *allow != "" {
		if allowed, err = compare.ReadAllowList(*allow); err != nil {
			return err
		}
	}
	report := compare.Judge(compare.Transcripts(a, b), allowed)
	if *propose {
		encoder := json.NewEncoder(os.Stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(compare.Propose(report.Unexpected))
	}
	report.Print(os.Stdout, *limit)
	if !report.OK() {
		return errors.New("the transcripts differ")
	}
	return nil
}

func runMutate(_ context.Context, arguments []string) error {
	flags := flag.NewFlagSet("mutate", flag.ExitOnError)
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("one transcript is needed: mutate TRANSCRIPT.json")
	}
	recorded, err := transcript.Read(flags.Arg(0))
	if err != nil {
		return err
	}
	return mutate.Offline(recorded).Print(os.Stdout)
}

func runMutateLive(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("mutate-live", flag.ExitOnError)
	config := suiteFlags(flags)
	rounds := flags.Int("rounds", 1, "runs with one alteration in each scenario")
	seed := flags.Uint64("seed", 1, "which alterations")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if err := checkSuiteFlags(config); err != nil {
		return err
	}
	return mutate.Live(ctx, *config, *rounds, *seed)
}

func runRegistry(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("registry", flag.ExitOnError)
	address := flags.String("listen", "127.0.0.1:0", "address to serve")
	busybox := flags.String("busybox", "/bin/busybox", "a static busybox")
	hosts := flags.String("hosts", "", "directory for hosts.toml files, containerd's config_path")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	images, err := registry.New(*busybox)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		return err
	}
	if *hosts != "" {
		if err := registry.WriteHosts(*hosts, listener.Addr().String()); err != nil {
			return errors.Join(err, listener.Close())
		}
	}
	fmt.Println(listener.Addr())
	server := &http.Server{Handler: images}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func runJUnit(_ context.Context, arguments []string) error {
	if len(arguments) != 2 {
		return errors.New("two reports are needed: junit DIRECT.xml THROUGH.xml")
	}
	direct, err := junit.Read(arguments[0])
	if err != nil {
		return err
	}
	through, err := junit.Read(arguments[1])
	if err != nil {
		return err
	}
	return junit.Compare(os.Stdout, direct, through)
}
