// Package suite runs a fixed list of CRI scenarios against one endpoint and
// records everything that comes back.
//
// The scenarios judge little themselves: what an endpoint should answer is what
// the runtime behind it answers when asked directly. They only insist (Required)
// that the calls without which nothing was exercised did succeed.
package suite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"koord/conformance/internal/cgroup"
	"koord/conformance/internal/transcript"
)

// Config says what to run against what.
type Config struct {
	// Endpoint is the path of the CRI socket.
	Endpoint string
	// Image is a busybox image that the runtime already has.
	Image string
	// CgroupParent is the cgroup below which pod cgroups are made, such as
	// "/conformance". It is created, and removed again.
	CgroupParent string
	// RestartCommand restarts the runtime. Only a run without the scenario
	// "restart" can do without.
	RestartCommand string
	// Only limits the run to the named scenarios; empty means all.
	Only []string
	// Log receives one line per scenario; nil for none.
	Log func(format string, arguments ...any)
}

// Suite is one run in progress.
type Suite struct {
	config  Config
	conn    *grpc.ClientConn
	cgroups *cgroup.Tree
	logs    string
	runtime string
}

// definition is one scenario by name.
type definition struct {
	name string
	run  func(*Scenario)
}

// Names lists all scenarios in the order they run.
func Names() []string {
	var names []string
	for _, definition := range definitions {
		names = append(names, definition.name)
	}
	return names
}

// Run executes the scenarios and returns the transcript. The error is about
// the surroundings (no endpoint, no cgroups), never about an answer.
func Run(ctx context.Context, config Config) (*transcript.Transcript, error) {
	suite, err := open(ctx, config)
	if err != nil {
		return nil, err
	}
	recorded := &transcript.Transcript{
		Runtime: suite.runtime,
		Paths:   map[string]string{"logs": suite.logs, "cgroups": config.CgroupParent},
	}
	for _, definition := range definitions {
		if !wanted(config.Only, definition.name) {
			continue
		}
		started := time.Now()
		scenario, err := suite.scenario(ctx, definition)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("scenario %s: %w", definition.name, err), suite.close())
		}
		recorded.Scenarios = append(recorded.Scenarios, *scenario)
		config.Log("%-24s %3d steps %6.2f s", definition.name, len(scenario.Steps), time.Since(started).Seconds())
	}
	return recorded, suite.close()
}

func open(ctx context.Context, config Config) (*Suite, error) {
	if config.RestartCommand == "" && wanted(config.Only, "restart") {
		return nil, errors.New("the scenario restart needs a command that restarts the runtime")
	}
	conn, err := Dial(config.Endpoint)
	if err != nil {
		return nil, err
	}
	suite := &Suite{config: config, conn: conn}
	if err := suite.identify(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	suite.cgroups, err = cgroup.New(config.CgroupParent)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// A name of fixed length, so that messages which hold it have one, too.
	suite.logs = filepath.Join(os.TempDir(), fmt.Sprintf("conformance-logs-%010d", os.Getpid()))
	if err := os.Mkdir(suite.logs, 0o755); err != nil {
		return nil, errors.Join(err, suite.cgroups.Remove(), conn.Close())
	}
	return suite, nil
}

func (s *Suite) close() error {
	// A run that was interrupted still has to take its pods away.
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	return errors.Join(s.sweep(ctx), s.cgroups.Remove(), os.RemoveAll(s.logs), s.conn.Close())
}

// identify asks for the version, also to find out early that nobody answers.
func (s *Suite) identify(ctx context.Context) error {
	version := &runtime.VersionResponse{}
	if err := s.quietly(ctx, runtime.RuntimeService_Version_FullMethodName, &runtime.VersionRequest{}, version); err != nil {
		return fmt.Errorf("%s does not answer: %w", s.config.Endpoint, err)
	}
	s.runtime = version.RuntimeName + " " + version.RuntimeVersion
	return nil
}

func (s *Suite) scenario(ctx context.Context, definition definition) (*transcript.Scenario, error) {
	if err := s.sweep(ctx); err != nil {
		return nil, err
	}
	logs := filepath.Join(s.logs, definition.name)
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	scenario := &Scenario{
		suite: s, ctx: ctx, logs: logs,
		recorded: &transcript.Scenario{Name: definition.name, StartedNS: time.Now().UnixNano()},
	}
	scenario.play(definition.run)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return scenario.recorded, s.sweep(ctx)
}

// sweep removes every pod of the suite, whatever state it was left in.
func (s *Suite) sweep(ctx context.Context) error {
	list := &runtime.ListPodSandboxResponse{}
	filter := &runtime.PodSandboxFilter{LabelSelector: map[string]string{runLabel: "true"}}
	err := s.quietly(ctx, runtime.RuntimeService_ListPodSandbox_FullMethodName,
		&runtime.ListPodSandboxRequest{Filter: filter}, list)
	if err != nil {
		return fmt.Errorf("listing leftovers: %w", err)
	}
	for _, pod := range list.Items {
		stop := &runtime.StopPodSandboxRequest{PodSandboxId: pod.Id}
		if err := s.quietly(ctx, runtime.RuntimeService_StopPodSandbox_FullMethodName, stop, nil); err != nil {
			return fmt.Errorf("stopping leftover pod %s: %w", pod.Id, err)
		}
		remove := &runtime.RemovePodSandboxRequest{PodSandboxId: pod.Id}
		if err := s.quietly(ctx, runtime.RuntimeService_RemovePodSandbox_FullMethodName, remove, nil); err != nil {
			return fmt.Errorf("removing leftover pod %s: %w", pod.Id, err)
		}
	}
	return s.cgroups.RemovePods()
}

// quietly makes a call that is not recorded.
func (s *Suite) quietly(ctx context.Context, method string, request, reply proto.Message) error {
	data, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	call := &call{method: method, request: data, timeout: callTimeout}
	answer := call.do(ctx, s.conn)
	if answer.Err != nil || reply == nil {
		return answer.Err
	}
	return proto.Unmarshal(answer.Bytes(), reply)
}

func wanted(only []string, name string) bool {
	return len(only) == 0 || slices.Contains(only, name)
}
