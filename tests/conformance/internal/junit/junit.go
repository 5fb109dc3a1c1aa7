// Package junit compares two JUnit reports of one suite, spec by spec.
package junit

import (
	"encoding/xml"
	"fmt"
	"io"
	"os"
	"sort"
)

// Outcome of one spec.
type Outcome string

// The outcomes that count here.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
	Missing Outcome = "missing"
)

type report struct {
	Suites []struct {
		Cases []struct {
			Name    string    `xml:"name,attr"`
			Failure *struct{} `xml:"failure"`
			Error   *struct{} `xml:"error"`
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// Read loads a report. Specs of one name are told apart by their order.
func Read(path string) (map[string]Outcome, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var parsed report
	if err := xml.Unmarshal(data, &parsed); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	outcomes := map[string]Outcome{}
	for _, suite := range parsed.Suites {
		for _, spec := range suite.Cases {
			name := spec.Name
			for n := 2; outcomes[name] != ""; n++ {
				name = fmt.Sprintf("%s (%d)", spec.Name, n)
			}
			switch {
			case spec.Failure != nil || spec.Error != nil:
				outcomes[name] = Failed
			case spec.Skipped != nil:
				outcomes[name] = Skipped
			default:
				outcomes[name] = Passed
			}
		}
	}
	if len(outcomes) == 0 {
		return nil, fmt.Errorf("%s holds no spec", path)
	}
	return outcomes, nil
}

// Compare prints how the outcomes differ, which specs fail both ways and so show nothing, and how
// many there are of each. The error says that a spec passes directly but not through the proxy.
func Compare(out io.Writer, direct, through map[string]Outcome) error {
	names := make([]string, 0, len(direct))
	for name := range direct {
		names = append(names, name)
	}
	for name := range through {
		if direct[name] == "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	lost := 0
	for _, name := range names {
		before, after := or(direct[name]), or(through[name])
		if before == Failed && after == Failed {
			fmt.Fprintf(out, "failed both ways, shows nothing: %s\n", name)
		}
		if before == after {
			continue
		}
		if before == Passed {
			lost++
		}
		fmt.Fprintf(out, "%-8s directly, %-8s through the proxy: %s\n", before, after, name)
	}
	fmt.Fprintf(out, "directly: %s\nthrough:  %s\n", summary(direct), summary(through))
	if lost > 0 {
		return fmt.Errorf("%d specs pass directly but not through the proxy", lost)
	}
	return nil
}

func or(outcome Outcome) Outcome {
	if outcome == "" {
		return Missing
	}
	return outcome
}

func summary(outcomes map[string]Outcome) string {
	counts := map[Outcome]int{}
	for _, outcome := range outcomes {
		counts[outcome]++
	}
	return fmt.Sprintf("%d specs, %d passed, %d failed, %d skipped",
		len(outcomes), counts[Passed], counts[Failed], counts[Skipped])
}
