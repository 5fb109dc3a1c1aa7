// Package compare finds every difference between two transcripts and decides
// which of them were announced.
package compare

import (
	"fmt"
	"io"
	"strings"

	"koord/conformance/internal/canon"
	"koord/conformance/internal/transcript"
)

// Absent stands for the value of a field that one side does not have.
const Absent = "<absent>"

// Difference is one field that the two runs do not share.
type Difference struct {
	Scenario string
	Step     string
	Path     string
	// Object and Field say which pod ("name") or container ("pod/name") the
	// reply described and where in that description the field is.
	Object string
	Field  string
	A, B   string
}

func (d Difference) String() string {
	object := ""
	if d.Object != "" {
		object = fmt.Sprintf("\n    of:   %s %s", d.Object, d.Field)
	}
	return fmt.Sprintf("%s / %s\n    path: %s%s\n    A:    %s\n    B:    %s",
		d.Scenario, d.Step, d.Path, object, shorten(d.A), shorten(d.B))
}

// Transcripts lists what differs between two runs, scenario by scenario.
func Transcripts(a, b *transcript.Transcript) []Difference {
	var differences []Difference
	for i := range a.Scenarios {
		scenario := &a.Scenarios[i]
		other := b.Scenario(scenario.Name)
		if other == nil {
			differences = append(differences, Difference{Scenario: scenario.Name, A: "recorded", B: Absent})
			continue
		}
		differences = append(differences, Scenarios(Leaves(a, scenario), Leaves(b, other), scenario.Name)...)
	}
	for _, scenario := range b.Scenarios {
		if a.Scenario(scenario.Name) == nil {
			differences = append(differences, Difference{Scenario: scenario.Name, A: Absent, B: "recorded"})
		}
	}
	return differences
}

// Leaves lists a scenario's leaves with the transcript's own paths replaced.
func Leaves(recorded *transcript.Transcript, scenario *transcript.Scenario) []canon.Leaf {
	return canon.Scenario(recorded.Paths, scenario)
}

// Scenarios compares the leaves of one scenario.
func Scenarios(a, b []canon.Leaf, name string) []Difference {
	var differences []Difference
	inB := make(map[string]canon.Leaf, len(b))
	for _, leaf := range b {
		inB[leaf.Key()] = leaf
	}
	inA := make(map[string]bool, len(a))
	for _, leaf := range a {
		inA[leaf.Key()] = true
		other, ok := inB[leaf.Key()]
		if !ok {
			other = leaf
			other.Value = Absent
		}
		if leaf.Value != other.Value {
			differences = append(differences, difference(name, leaf, leaf.Value, other.Value))
		}
	}
	for _, leaf := range b {
		if !inA[leaf.Key()] {
			differences = append(differences, difference(name, leaf, Absent, leaf.Value))
		}
	}
	return differences
}

func difference(scenario string, leaf canon.Leaf, a, b string) Difference {
	return Difference{
		Scenario: scenario, Step: leaf.Step, Path: leaf.Path,
		Object: leaf.Object, Field: leaf.Field, A: a, B: b,
	}
}

// Report is the verdict on a comparison.
type Report struct {
	Unexpected []Difference
	Permitted  []Difference
	// Missing are announced differences that did not come.
	Missing []Announcement
}

// OK tells whether the runs are equal but for what was announced.
func (r Report) OK() bool { return len(r.Unexpected) == 0 && len(r.Missing) == 0 }

// Judge sorts differences by what the allow list announces.
func Judge(differences []Difference, allowed []Announcement) Report {
	var report Report
	met := make([]bool, len(allowed))
	for _, difference := range differences {
		permitted := false
		for i, announcement := range allowed {
			if announcement.matches(difference) {
				met[i], permitted = true, true
			}
		}
		if permitted {
			report.Permitted = append(report.Permitted, difference)
		} else {
			report.Unexpected = append(report.Unexpected, difference)
		}
	}
	for i, announcement := range allowed {
		if !met[i] {
			report.Missing = append(report.Missing, announcement)
		}
	}
	return report
}

// Print writes the verdict, at most limit differences of each sort.
func (r Report) Print(out io.Writer, limit int) {
	printList(out, "permitted difference", r.Permitted, limit)
	printList(out, "DIFFERENCE", r.Unexpected, limit)
	for _, announcement := range r.Missing {
		fmt.Fprintf(out, "MISSING: announced, but equal or not there: %s\n", announcement)
	}
	fmt.Fprintf(out, "%d unexpected, %d permitted, %d announced but missing\n",
		len(r.Unexpected), len(r.Permitted), len(r.Missing))
}

func printList(out io.Writer, title string, list []Difference, limit int) {
	for i, difference := range list {
		if i == limit {
			fmt.Fprintf(out, "… and %d more\n", len(list)-limit)
			return
		}
		fmt.Fprintf(out, "%s: %s\n", title, difference)
	}
}

// shorten keeps a long value readable: both ends and the length.
func shorten(value string) string {
	const limit, keep = 600, 280
	if len(value) <= limit {
		return value
	}
	return strings.ToValidUTF8(fmt.Sprintf("%s…(%d bytes)…%s", value[:keep], len(value), value[len(value)-keep:]), "?")
}
