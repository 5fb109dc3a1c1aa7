// Package transcript is the record of one run of the suite: every request as
// it was sent and every reply as it came, as bytes, with what gRPC said around
// them.
package transcript

import (
	"encoding/json"
	"fmt"
	"os"

	"koord/conformance/internal/wire"
)

// treeLimit is the size in bytes above which a message is kept as bytes only.
const treeLimit = 64 << 10

// requestLimit is the size in bytes above which a request, which we made
// ourselves and can make again, is not kept.
const requestLimit = 64 << 10

// Transcript is one run against one endpoint.
type Transcript struct {
	Runtime string `json:"runtime"`
	// Paths maps a label to a directory or socket of this run; every
	// occurrence reads as its label in a comparison.
	Paths     map[string]string `json:"paths,omitempty"`
	Scenarios []Scenario        `json:"scenarios"`
}

// Scenario is a named list of steps. Ids, times and the like are numbered
// within it.
type Scenario struct {
	Name string `json:"name"`
	// StartedNS is the wall clock in ns since 1970 when the scenario began.
	StartedNS int64  `json:"started_ns"`
	Steps     []Step `json:"steps"`
}

// Step is one call, or one observation made beside the calls.
type Step struct {
	Name   string `json:"name"`
	Method string `json:"method,omitempty"`
	// Required steps must answer OK for the run to mean anything.
	Required    bool      `json:"required,omitempty"`
	Request     *Message  `json:"request,omitempty"`
	Replies     []Message `json:"replies,omitempty"`
	Status      *Status   `json:"status,omitempty"`
	Header      Metadata  `json:"header,omitempty"`
	Trailer     Metadata  `json:"trailer,omitempty"`
	Observed    string    `json:"observed,omitempty"`
	Observation bool      `json:"observation,omitempty"`
	// EndedNS is the wall clock in ns since 1970 when the step was over.
	EndedNS int64 `json:"ended_ns"`
}

// Message is one message on the wire. Bytes are what a comparison reads, Tree
// is for people.
type Message struct {
	Bytes []byte `json:"bytes"`
	// Size is the length in bytes, also where Bytes were not kept.
	Size int `json:"size"`
	Tree any `json:"tree,omitempty"`
}

// Metadata is a gRPC header or trailer list.
type Metadata map[string][]string

// Status is what the call ended with.
type Status struct {
	Code    int      `json:"code"`
	Name    string   `json:"name"`
	Message string   `json:"message,omitempty"`
	Details []Detail `json:"details,omitempty"`
}

// Detail is one entry of grpc-status-details-bin.
type Detail struct {
	TypeURL string `json:"type_url"`
	Value   []byte `json:"value"`
}

// NewReply records a reply of the given method.
func NewReply(method string, data []byte) Message {
	_, reply := wire.Method(method)
	message := Message{Bytes: data, Size: len(data)}
	if tree, err := wire.Decode(reply, data); err == nil && len(data) <= treeLimit {
		message.Tree = tree.JSON()
	}
	return message
}

// NewRequest records a request of the given method.
func NewRequest(method string, data []byte) *Message {
	if len(data) > requestLimit {
		return &Message{Size: len(data)}
	}
	request, _ := wire.Method(method)
	message := &Message{Bytes: data, Size: len(data)}
	if tree, err := wire.Decode(request, data); err == nil {
		message.Tree = tree.JSON()
	}
	return message
}

// Read loads a transcript from a file.
func Read(path string) (*Transcript, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	recorded := &Transcript{}
	if err := json.Unmarshal(data, recorded); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return recorded, nil
}

// Write stores the transcript in a file.
func (t *Transcript) Write(path string) error {
	data, err := json.MarshalIndent(t, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}

// Scenario finds a scenario by name.
func (t *Transcript) Scenario(name string) *Scenario {
	for i := range t.Scenarios {
		if t.Scenarios[i].Name == name {
			return &t.Scenarios[i]
		}
	}
	return nil
}

// Step finds a step by name.
func (s *Scenario) Step(name string) *Step {
	for i := range s.Steps {
		if s.Steps[i].Name == name {
			return &s.Steps[i]
		}
	}
	return nil
}

// Broken lists the required steps that did not answer OK.
func (t *Transcript) Broken() []string {
	var broken []string
	for _, scenario := range t.Scenarios {
		for _, step := range scenario.Steps {
			if step.Required && step.Status != nil && step.Status.Code != 0 {
				broken = append(broken, fmt.Sprintf("%s/%s: %s: %s",
					scenario.Name, step.Name, step.Status.Name, step.Status.Message))
			}
		}
	}
	return broken
}
