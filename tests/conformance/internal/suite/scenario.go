package suite

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"koord/conformance/internal/transcript"
)

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
