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
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
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
	// RestartCommand restarts the runtime; without it that scenario fails.
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

// Scenario records the steps of one scenario.
type Scenario struct {
	suite    *Suite
	ctx      context.Context
	logs     string
	mutex    sync.Mutex
	recorded *transcript.Scenario
}

// aborted ends a scenario from within, after a step that had to succeed.
type aborted struct{}

// play runs the scenario to its end or to the first required step that failed:
// what comes after would only repeat that failure.
func (s *Scenario) play(run func(*Scenario)) {
	defer func() {
		if cause := recover(); cause != nil {
			if _, ok := cause.(aborted); !ok {
				panic(cause)
			}
		}
	}()
	run(s)
}

// Call makes a unary call and records it under the step's name.
func (s *Scenario) Call(step, method string, request proto.Message, options ...Option) *Reply {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("step %s: a request of ours cannot be encoded: %v", step, err))
	}
	return s.CallRaw(step, method, data, options...)
}

// CallRaw is Call with a request of any bytes.
func (s *Scenario) CallRaw(step, method string, request []byte, options ...Option) *Reply {
	call := newCall(method, request, options)
	reply := s.perform(step, call)
	s.add(call.record(step, reply))
	return reply
}

// Stream makes a server-streaming call and records all its messages, until the
// stream ends or enough says so.
func (s *Scenario) Stream(step, method string, request proto.Message, enough func([][]byte) bool, options ...Option) *Reply {
	data, err := proto.Marshal(request)
	if err != nil {
		panic(fmt.Sprintf("step %s: a request of ours cannot be encoded: %v", step, err))
	}
	call := newCall(method, data, options)
	call.stream, call.enough = true, enough
	reply := s.perform(step, call)
	s.add(call.record(step, reply))
	return reply
}

// Parallel makes calls at the same time and records them in the order given.
func (s *Scenario) Parallel(calls []ParallelCall) {
	steps := make([]transcript.Step, len(calls))
	var group sync.WaitGroup
	for i, parallel := range calls {
		group.Go(func() {
			data, err := proto.MarshalOptions{Deterministic: true}.Marshal(parallel.Request)
			if err != nil {
				panic(fmt.Sprintf("step %s: a request of ours cannot be encoded: %v", parallel.Step, err))
			}
			call := newCall(parallel.Method, data, parallel.Options)
			reply := s.perform(parallel.Step, call)
			if parallel.Done != nil {
				parallel.Done(reply)
			}
			steps[i] = call.record(parallel.Step, reply)
		})
	}
	group.Wait()
	for _, step := range steps {
		s.add(step)
	}
}

// ParallelCall is one of several calls made at once.
type ParallelCall struct {
	Step    string
	Method  string
	Request proto.Message
	Options []Option
	Done    func(*Reply)
}

// Observe records something seen beside the calls.
func (s *Scenario) Observe(step, value string) {
	s.add(transcript.Step{Name: step, Observation: true, Observed: value, EndedNS: time.Now().UnixNano()})
}

func newCall(method string, request []byte, options []Option) *call {
	call := &call{method: method, request: request, timeout: callTimeout}
	for _, option := range options {
		option(call)
	}
	return call
}

func (s *Scenario) perform(step string, call *call) *Reply {
	name := s.recorded.Name + "/" + step
	ctx := metadata.AppendToOutgoingContext(s.ctx, StepHeader, name)
	deadline := time.Now().Add(call.untilLimit)
	for {
		reply := call.do(ctx, s.suite.conn)
		if call.until == nil || call.until(reply) || time.Now().After(deadline) || s.ctx.Err() != nil {
			return reply
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *Scenario) add(step transcript.Step) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.recorded.Step(step.Name) != nil {
		panic(fmt.Sprintf("scenario %s has two steps named %q", s.recorded.Name, step.Name))
	}
	s.recorded.Steps = append(s.recorded.Steps, step)
	if step.Required && step.Status.Code != 0 {
		panic(aborted{})
	}
}

func wanted(only []string, name string) bool {
	if len(only) == 0 {
		return true
	}
	for _, candidate := range only {
		if candidate == name {
			return true
		}
	}
	return false
}
