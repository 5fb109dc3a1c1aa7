package mutate

import (
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sort"
	"sync"

	"koord/conformance/internal/canon"
	"koord/conformance/internal/compare"
	"koord/conformance/internal/transcript"
)

// Tally counts alterations and those that no comparison noticed.
type Tally struct {
	Tried int
	// Unnoticed maps a kind of leaf to what happened there.
	Unnoticed map[string][]string
}

// blindSpots are the kinds of leaves where a change to another value of the
// same type cannot be told from an honest run. README.md explains each.
var blindSpots = map[string]string{
	"measurement":          "another value that is not zero either",
	"volatile measurement": "any value, zero included",
	"time of a sample":     "another time in the same order",
	"time":                 "a time that occurs once, in the same order",
	"token":                "a token of a streaming URL, each occurs once",
	"port":                 "an ephemeral port that occurs once",
	"pid":                  "a process number that occurs once",
}

// Offline makes every alteration of a recorded transcript, one at a time.
func Offline(recorded *transcript.Transcript) Tally {
	tally := Tally{Unnoticed: map[string][]string{}}
	var mutex sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range recorded.Scenarios {
		original := read(recorded.Paths, &recorded.Scenarios[i])
		for j := range original.scenario.Steps {
			slots <- struct{}{}
			group.Go(func() {
				tried, unnoticed := original.alterStep(j)
				mutex.Lock()
				tally.Tried += tried
				for kind, places := range unnoticed {
					tally.Unnoticed[kind] = append(tally.Unnoticed[kind], places...)
				}
				mutex.Unlock()
				<-slots
			})
		}
	}
	group.Wait()
	return tally
}

// reading is a scenario as recorded, with its leaves and, for each step, a
// reader that stands before it.
type reading struct {
	scenario *transcript.Scenario
	before   []*canon.Reader
	leaves   [][]canon.Leaf
}

func read(paths map[string]string, scenario *transcript.Scenario) *reading {
	original := &reading{scenario: scenario}
	reader := canon.NewReader(paths, scenario)
	for i := range scenario.Steps {
		original.before = append(original.before, reader.Clone())
		original.leaves = append(original.leaves, reader.Step(&scenario.Steps[i]))
	}
	return original
}

// Print writes the tally; the error says that something went unnoticed which
// should not have.
func (t Tally) Print(out io.Writer) error {
	fmt.Fprintf(out, "%d alterations, one at a time\n", t.Tried)
	var wrong []string
	for _, kind := range slices.Sorted(maps.Keys(t.Unnoticed)) {
		places := t.Unnoticed[kind]
		reason, known := blindSpots[kind]
		if !known {
			wrong = append(wrong, kind)
			reason = "NOT A KNOWN BLIND SPOT"
		}
		fmt.Fprintf(out, "%6d unnoticed: %s (%s)\n", len(places), kind, reason)
		if !known {
			sort.Strings(places)
			for _, place := range places[:min(10, len(places))] {
				fmt.Fprintf(out, "         %s\n", place)
			}
		}
	}
	if t.Tried == 0 {
		return fmt.Errorf("the transcript has no reply to alter")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("alterations went unnoticed: %v", wrong)
	}
	return nil
}

// alterStep tries all alterations of one step.
func (r *reading) alterStep(index int) (int, map[string][]string) {
	step := &r.scenario.Steps[index]
	unnoticed := map[string][]string{}
	tried := 0
	judge := func(altered transcript.Step, kind func() string, description string) {
		tried++
		if !r.noticed(index, &altered) {
			unnoticed[kind()] = append(unnoticed[kind()], description)
		}
	}
	for _, alteration := range Of(r.scenario.Name, step) {
		data, err := alteration.Apply(step.Method, step.Replies[alteration.Reply].Bytes)
		if err != nil {
			unnoticed["could not be altered"] = append(unnoticed["could not be altered"], err.Error())
			continue
		}
		altered := *step
		altered.Replies = slices.Clone(step.Replies)
		altered.Replies[alteration.Reply].Bytes = data
		judge(altered, func() string { return r.kindOf(index, &altered, alteration) }, alteration.String())
	}
	for _, around := range around(step) {
		judge(around.step, func() string { return around.what }, r.scenario.Name+" / "+step.Name+": "+around.what)
	}
	return tried, unnoticed
}

// noticed tells whether the comparison of the scenario finds the altered step,
// be it only in a later one that disagrees about an id.
func (r *reading) noticed(index int, altered *transcript.Step) bool {
	reader := r.before[index].Clone()
	for i := index; i < len(r.scenario.Steps); i++ {
		step := &r.scenario.Steps[i]
		if i == index {
			step = altered
		}
		leaves := reader.Step(step)
		if !slices.Equal(leaves, r.leaves[i]) && len(compare.Scenarios(r.leaves[i], leaves, r.scenario.Name)) > 0 {
			return true
		}
	}
	return false
}

// kindOf names the kind of leaf where an alteration went unnoticed.
func (r *reading) kindOf(index int, altered *transcript.Step, alteration Alteration) string {
	// A change of a measurement to nothing at all has to be noticed.
	gone := alteration.How != Change
	switch {
	case alteration.Nature == canon.Volatile:
		return "volatile measurement"
	case alteration.Nature == canon.Measured && !gone:
		return "measurement"
	case alteration.Nature == canon.SampleTime && !gone:
		return "time of a sample"
	case alteration.Nature == canon.Time && !gone:
		return "time"
	}
	original, changed := r.before[index].Clone(), r.before[index].Clone()
	original.Step(&r.scenario.Steps[index])
	changed.Step(altered)
	for kind, values := range original.Named() {
		for value := range values {
			if _, kept := changed.Named()[kind][value]; !kept && !gone {
				return kind
			}
		}
	}
	return string(alteration.How) + " of " + alteration.Field
}

// variant is a step changed beside its messages.
type variant struct {
	what string
	step transcript.Step
}

// around lists the changes of what gRPC says around the messages.
func around(step *transcript.Step) []variant {
	if step.Status == nil {
		return nil
	}
	var list []variant
	add := func(what string, change func(*transcript.Step)) {
		altered := clone(step)
		change(&altered)
		list = append(list, variant{what: what, step: altered})
	}
	add("status code", func(s *transcript.Step) { s.Status.Code++ })
	add("status message", func(s *transcript.Step) { s.Status.Message += "." })
	add("status details", func(s *transcript.Step) {
		s.Status.Details = append(s.Status.Details, transcript.Detail{TypeURL: "type.example/x", Value: []byte{1}})
	})
	for i := range step.Status.Details {
		add("status detail", func(s *transcript.Step) {
			s.Status.Details[i].Value = append(slices.Clone(s.Status.Details[i].Value), 0)
		})
	}
	add("header added", func(s *transcript.Step) { s.Header = withEntry(s.Header) })
	add("trailer added", func(s *transcript.Step) { s.Trailer = withEntry(s.Trailer) })
	for name := range step.Header {
		add("header changed", func(s *transcript.Step) { s.Header[name][0] += "x" })
		add("header dropped", func(s *transcript.Step) { delete(s.Header, name) })
	}
	for name := range step.Trailer {
		add("trailer changed", func(s *transcript.Step) { s.Trailer[name][0] += "x" })
		add("trailer dropped", func(s *transcript.Step) { delete(s.Trailer, name) })
	}
	if len(step.Replies) > 0 {
		add("message lost", func(s *transcript.Step) { s.Replies = s.Replies[1:] })
		add("message repeated", func(s *transcript.Step) { s.Replies = append(s.Replies, s.Replies[0]) })
	}
	for i := 1; i < len(step.Replies); i++ {
		add("messages exchanged", func(s *transcript.Step) {
			s.Replies[i-1], s.Replies[i] = s.Replies[i], s.Replies[i-1]
		})
	}
	return list
}

// clone copies what around changes.
func clone(step *transcript.Step) transcript.Step {
	copied := *step
	status := *step.Status
	status.Details = slices.Clone(status.Details)
	copied.Status = &status
	copied.Header, copied.Trailer = cloneMetadata(step.Header), cloneMetadata(step.Trailer)
	copied.Replies = slices.Clone(step.Replies)
	return copied
}

func cloneMetadata(metadata transcript.Metadata) transcript.Metadata {
	copied := transcript.Metadata{}
	for name, values := range metadata {
		copied[name] = slices.Clone(values)
	}
	return copied
}

func withEntry(metadata transcript.Metadata) transcript.Metadata {
	metadata["x-altered"] = []string{"1"}
	return metadata
}
